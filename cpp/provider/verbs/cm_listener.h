// A listening rdma_cm id.
#pragma once

#include <memory>
#include <string>

#include "provider/provider.h"
#include "provider/verbs/address.h"
#include "provider/verbs/cm_channel.h"

namespace rrpc::provider::verbs {

class CmListener final : public Listener {
 public:
  static Result<std::unique_ptr<Listener>> create(const Address& address, const ListenOptions& options);

  const std::string& address() const override { return address_; }
  int wait_fd() const override { return channel_.fd(); }
  Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) override;
  Result<std::unique_ptr<SharedReceiveQueue>> create_shared_receive_queue(uint32_t depth) override;

 private:
  CmListener(CmChannel channel, CmId id, Address wanted, std::string address)
      : channel_(std::move(channel)), id_(std::move(id)), wanted_(std::move(wanted)), address_(std::move(address)) {}

  static Result<std::unique_ptr<Listener>> listen_on(const Address& address, SocketAddress where, int backlog);

  CmChannel channel_;
  CmId id_;  // destroyed before its channel
  Address wanted_;
  std::string address_;
};

}  // namespace rrpc::provider::verbs
