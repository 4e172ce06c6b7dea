#include "provider/tcp/listener.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "provider/socket.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

constexpr size_t kSilentMax = 4096;
constexpr size_t kHandshakesMax = 1024;  // some 50 KiB each

// No more than an eighth of the descriptors that the process may have.
static size_t silent_sockets_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kSilentMax;
  return std::clamp<size_t>(limit.rlim_cur / 8, 1, kSilentMax);
}

TcpListener::TcpListener(UniqueFd socket, std::shared_ptr<TlsContext> tls)
    : socket_(std::move(socket)),
      address_(local_address(socket_.get()).to_string()),
      silent_(socket_.get(), silent_sockets_max()) {
  if (tls != nullptr)
    handshakes_ = std::make_unique<Handshakes>(silent_, std::move(tls), std::min(kHandshakesMax, silent_sockets_max()));
}

Result<std::unique_ptr<Listener>> TcpListener::create(const std::string& address, const ListenOptions& options) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<SocketAddress> candidates, resolve(address, ResolveFor::kListen, kNever));
  Status first_error;
  for (const SocketAddress& candidate : candidates) {
    Result<UniqueFd> socket = listen_on(candidate, address, options.backlog);
    if (socket.ok()) {
      std::unique_ptr<TcpListener> listener(new TcpListener(std::move(socket).value(), options.tls));
      RRPC_RETURN_IF_ERROR(listener->silent_.open());
      if (listener->handshakes_ != nullptr) RRPC_RETURN_IF_ERROR(listener->handshakes_->start());
      return std::unique_ptr<Listener>(std::move(listener));
    }
    if (first_error.ok()) first_error = socket.status();
  }
  return first_error;
}

Result<std::unique_ptr<QueuePair>> TcpListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  auto& tcp_cq = static_cast<TcpCompletionQueue&>(cq);
  if (handshakes_ != nullptr) {
    RRPC_ASSIGN_OR_RETURN(Secured secured, handshakes_->next());
    if (!secured.socket) return std::unique_ptr<QueuePair>();
    return std::unique_ptr<QueuePair>(
        std::make_unique<TcpQueuePair>(tcp_cq, config, std::move(secured.socket), std::move(secured.channel)));
  }
  RRPC_ASSIGN_OR_RETURN(UniqueFd socket, silent_.next());
  if (!socket) return std::unique_ptr<QueuePair>();
  return std::unique_ptr<QueuePair>(std::make_unique<TcpQueuePair>(tcp_cq, config, std::move(socket)));
}

}  // namespace rrpc::provider::tcp
