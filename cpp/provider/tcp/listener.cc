#include "provider/tcp/listener.h"

#include <sys/socket.h>

#include <cerrno>

#include "provider/socket.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

TcpListener::TcpListener(UniqueFd socket)
    : socket_(std::move(socket)), address_(local_address(socket_.get()).to_string()) {}

Result<std::unique_ptr<Listener>> TcpListener::create(const std::string& address, const ListenOptions& options) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<SocketAddress> candidates, resolve(address, ResolveFor::kListen, kNever));
  Status first_error;
  for (const SocketAddress& candidate : candidates) {
    Result<UniqueFd> socket = listen_on(candidate, address, options.backlog);
    if (socket.ok()) return std::unique_ptr<Listener>(new TcpListener(std::move(socket).value()));
    if (first_error.ok()) first_error = socket.status();
  }
  return first_error;
}

static bool concerns_one_attempt(int error_number) {
  return error_number == ECONNABORTED || error_number == EPROTO || error_number == EINTR || error_number == ENETDOWN ||
         error_number == EHOSTUNREACH || error_number == ENETUNREACH;
}

Result<std::unique_ptr<QueuePair>> TcpListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || concerns_one_attempt(errno)) return std::unique_ptr<QueuePair>();
    return Status::from_errno(errno, "cannot accept a connection on " + address_);
  }
  return std::unique_ptr<QueuePair>(
      std::make_unique<TcpQueuePair>(static_cast<TcpCompletionQueue&>(cq), config, std::move(socket)));
}

}  // namespace rrpc::provider::tcp
