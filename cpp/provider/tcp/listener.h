// A listening TCP socket.
#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "provider/provider.h"
#include "provider/tcp/handshakes.h"
#include "provider/tcp/silent_sockets.h"

namespace rrpc::provider::tcp {

class TcpListener final : public Listener {
 public:
  static Result<std::unique_ptr<Listener>> create(const std::string& address, const ListenOptions& options);

  const std::string& address() const override { return address_; }
  int wait_fd() const override { return handshakes_ != nullptr ? handshakes_->wait_fd() : silent_.wait_fd(); }
  Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) override;

 private:
  TcpListener(UniqueFd socket, std::shared_ptr<TlsContext> tls);

  UniqueFd socket_;
  std::string address_;
  SilentSockets silent_;
  std::unique_ptr<Handshakes> handshakes_;  // null: in clear
};

}  // namespace rrpc::provider::tcp
