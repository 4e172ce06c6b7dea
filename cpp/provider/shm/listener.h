// The listening Unix socket of a server.
#pragma once

#include <memory>

#include "provider/provider.h"
#include "provider/shm/fork_guard.h"
#include "provider/shm/queue_pair.h"

namespace rrpc::provider::shm {

class ShmListener : public Listener {
 public:
  static Result<std::unique_ptr<Listener>> create(std::shared_ptr<DeviceState> device, const std::string& address,
                                                  const ListenOptions& options);
  ~ShmListener() override;

  const std::string& address() const override { return path_; }
  int wait_fd() const override { return socket_.get(); }
  Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) override;

 private:
  ShmListener(std::shared_ptr<DeviceState> device, std::string path, bool named, bool any_user)
      : device_(std::move(device)), path_(std::move(path)), named_(named), any_user_(any_user) {}
  Status bind_and_listen(int backlog);
  Status bind_then_listen(int backlog);
  Status bind_replacing_stale();

  std::shared_ptr<DeviceState> device_;
  std::string path_;
  bool named_;  // the path is in the user's own folder of sockets, made from a name
  bool any_user_;
  const std::shared_ptr<PeerBits> ready_bits_ = std::make_shared<PeerBits>();
  GuardedFd socket_;
  uint64_t inode_ = 0;  // of the socket file that is ours to unlink
  pid_t owner_pid_ = 0;
};

// A connected socket, or why there is none. Waits for room in the server's backlog until the deadline.
Result<UniqueFd> connect_to(const std::string& path, TimeNs deadline);

}  // namespace rrpc::provider::shm
