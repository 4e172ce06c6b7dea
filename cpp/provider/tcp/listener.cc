#include "provider/tcp/listener.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "provider/socket.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

constexpr size_t kSilentMax = 4096;

// No more than an eighth of the descriptors that the process may have.
static size_t silent_sockets_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kSilentMax;
  return std::clamp<size_t>(limit.rlim_cur / 8, 1, kSilentMax);
}

TcpListener::TcpListener(UniqueFd socket)
    : socket_(std::move(socket)),
      address_(local_address(socket_.get()).to_string()),
      silent_(socket_.get(), silent_sockets_max()) {}

Result<std::unique_ptr<Listener>> TcpListener::create(const std::string& address, const ListenOptions& options) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<SocketAddress> candidates, resolve(address, ResolveFor::kListen, kNever));
  Status first_error;
  for (const SocketAddress& candidate : candidates) {
    Result<UniqueFd> socket = listen_on(candidate, address, options.backlog);
    if (socket.ok()) {
      std::unique_ptr<TcpListener> listener(new TcpListener(std::move(socket).value()));
      RRPC_RETURN_IF_ERROR(listener->silent_.open());
      return std::unique_ptr<Listener>(std::move(listener));
    }
    if (first_error.ok()) first_error = socket.status();
  }
  return first_error;
}

Result<std::unique_ptr<QueuePair>> TcpListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  RRPC_ASSIGN_OR_RETURN(UniqueFd socket, silent_.next());
  if (!socket) return std::unique_ptr<QueuePair>();
  return std::unique_ptr<QueuePair>(
      std::make_unique<TcpQueuePair>(static_cast<TcpCompletionQueue&>(cq), config, std::move(socket)));
}

}  // namespace rrpc::provider::tcp
