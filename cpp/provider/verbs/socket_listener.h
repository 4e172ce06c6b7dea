// A listening TCP socket, and the peers that have dialled and not yet introduced their queue pairs.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "provider/provider.h"
#include "provider/verbs/address.h"
#include "provider/verbs/introduction.h"

namespace rrpc::provider::verbs {

class SocketListener final : public Listener {
 public:
  static Result<std::unique_ptr<Listener>> create(const Address& address, const ListenOptions& options);

  const std::string& address() const override { return address_; }
  int wait_fd() const override { return watch_.get(); }
  Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) override;
  Result<std::unique_ptr<SharedReceiveQueue>> create_shared_receive_queue(uint32_t depth) override;

 private:
  struct Newcomer {
    FrameSocket socket;
    TimeNs deadline;
  };

  SocketListener(UniqueFd socket, Address wanted);
  Status watch();
  Status welcome();
  void turn_away_the_late();
  void drop(std::list<Newcomer>::iterator newcomer, const std::string& reason);

  UniqueFd socket_;
  UniqueFd timer_;  // when the oldest newcomer has had its time
  UniqueFd watch_;  // an epoll of all the above
  Address wanted_;
  std::string address_;
  std::list<Newcomer> newcomers_;  // oldest first
};

}  // namespace rrpc::provider::verbs
