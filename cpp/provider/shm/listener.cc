#include "provider/shm/listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "provider/shm/address.h"
#include "provider/shm/socket_file.h"
namespace rrpc::provider::shm {

namespace {

Status connect_error(int error_number, const std::string& path) {
  switch (error_number) {
    case ENOENT:
    case ECONNREFUSED:
      return unavailable("no server listens on " + path);
    case EACCES:
    case EPERM:
      return permission_denied("this user may not connect to " + path);
    case EAGAIN:
      return deadline_exceeded("the server on " + path + " did not accept in time");
    default:
      return Status::from_errno(error_number, "connecting to " + path);
  }
}

void set_blocking(int fd, bool blocking) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace

Result<UniqueFd> connect_to(const std::string& path, TimeNs deadline) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status::from_errno(errno, "socket");
  int error_number = connect_socket(socket.get(), path);
  if (error_number == EAGAIN) {  // the backlog is full: only a blocking connect waits for room in it
    const TimeNs left = deadline == kNever ? 0 : std::max<TimeNs>(deadline - now_ns(), kMicrosecond);
    const timeval timeout{left / kSecond, left % kSecond / kMicrosecond};
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    set_blocking(socket.get(), true);
    do error_number = connect_socket(socket.get(), path);
    while (error_number == EINTR && now_ns() < deadline);
    set_blocking(socket.get(), false);
  }
  if (error_number != 0) return connect_error(error_number, path);
  return socket;
}

Result<std::unique_ptr<Listener>> ShmListener::create(std::shared_ptr<DeviceState> device, const std::string& address,
                                                      const ListenOptions& options) {
  RRPC_ASSIGN_OR_RETURN(std::string path, socket_path(address));
  RRPC_RETURN_IF_ERROR(prepare_directory(address, path, options.any_user));
  const bool named = !is_path(address);
  std::unique_ptr<ShmListener> listener(new ShmListener(std::move(device), std::move(path), named, options.any_user));
  RRPC_RETURN_IF_ERROR(listener->bind_and_listen(options.backlog));
  return std::unique_ptr<Listener>(std::move(listener));
}

Status ShmListener::bind_replacing_stale() {
  const uint64_t found_inode = inode_of(path_);
  int error_number = bind_socket(socket_.get(), path_);
  if (error_number == EADDRINUSE) {
    if (found_inode == 0 || !refuses(path_))
      return {StatusCode::kAlreadyExists,
              path_ + (found_inode == 0 ? " exists and is not a socket" : " is in use by another server")};
    if (inode_of(path_) == found_inode) unlink(path_.c_str());
    error_number = bind_socket(socket_.get(), path_);
  }
  if (error_number == ENOENT) return {StatusCode::kNotFound, "the directory of " + path_ + " does not exist"};
  return error_number == 0 ? Status() : Status::from_errno(error_number, "binding " + path_);
}

// Between bind and listen a socket looks like a dead server's: so both happen under the folder's lock, which whoever
// clears the folder has, too.
Status ShmListener::bind_and_listen(int backlog) {
  if (!named_) return bind_then_listen(backlog);
  const UniqueFd lock = lock_sockets(path_.substr(0, path_.rfind('/')));
  RRPC_RETURN_IF_ERROR(bind_then_listen(backlog));
  if (lock) clear_dead_sockets(path_);
  return {};
}

Status ShmListener::bind_then_listen(int backlog) {
  socket_ = GuardedFd(UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!socket_) return Status::from_errno(errno, "socket");
  RRPC_RETURN_IF_ERROR(bind_replacing_stale());
  inode_ = inode_of(path_);
  owner_pid_ = getpid();
  // Nobody gets in between: a connect before listen() is refused whatever the mode.
  if (chmod(path_.c_str(), any_user_ ? 0666 : 0600) != 0)
    return Status::from_errno(errno, "setting the mode of " + path_);
  if (listen(socket_.get(), backlog) != 0) return Status::from_errno(errno, "listening on " + path_);
  return {};
}

ShmListener::~ShmListener() {
  if (inode_ != 0 && owner_pid_ == getpid() && inode_of(path_) == inode_) unlink(path_.c_str());
}

Result<std::unique_ptr<QueuePair>> ShmListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::unique_ptr<QueuePair>();
    return Status::from_errno(errno, "accepting on " + path_);
  }
  RRPC_ASSIGN_OR_RETURN(const PeerProcess peer, PeerProcess::of(socket.get()));
  if (!any_user_ && peer.other_user()) {
    Status refusal =
        permission_denied("the server on " + path_ + " runs as uid " + std::to_string(geteuid()) +
                          " and lets no other user in, the client runs as uid " + std::to_string(peer.uid()));
    (void)SocketChannel(std::move(socket)).send(encode_goodbye(refusal, true));
    return refusal;
  }
  return ShmQueuePair::create(device_, static_cast<ShmCompletionQueue&>(cq), std::move(socket), config,
                              {true, any_user_, ready_bits_});
}

}  // namespace rrpc::provider::shm
