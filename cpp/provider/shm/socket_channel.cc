#include "provider/shm/socket_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace rrpc::provider::shm {

namespace {

constexpr size_t kFdsPerReceiveMax = 4;
constexpr size_t kBacklogMax = 2048;

Status closed_by_peer() { return unavailable("peer closed the connection"); }

}  // namespace

Result<SocketChannel::Sent> SocketChannel::try_send(Bytes bytes, int fd, size_t* sent_bytes) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  while (*sent_bytes < bytes.size()) {
    iovec iov{const_cast<std::byte*>(bytes.data()) + *sent_bytes, bytes.size() - *sent_bytes};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    if (fd >= 0 && *sent_bytes == 0) {  // descriptors travel with the first byte
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* part = CMSG_FIRSTHDR(&header);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
    }
    const ssize_t count = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      *sent_bytes += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == ETOOMANYREFS) {
      return Sent::kNoRoom;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Sent::kAll;  // what the peer said before it left is still to be read
    } else if (errno != EINTR) {
      return Status::from_errno(errno, "sending on the connection's socket");
    }
  }
  return Sent::kAll;
}

Status SocketChannel::send_now(const Frame& frame, int fd) {
  size_t sent_bytes = 0;
  if (backlog_.empty()) {
    RRPC_ASSIGN_OR_RETURN(Sent sent, try_send(frame.bytes(), fd, &sent_bytes));
    if (sent == Sent::kAll) return {};
  }
  if (sent_bytes == 0) return resource_exhausted("the peer isn't reading its socket");
  backlog_.push_back({{frame.bytes().begin(), frame.bytes().end()}, sent_bytes, {}});
  return {};
}

Status SocketChannel::send(const Frame& frame, int fd) {
  Status now = send_now(frame, fd);
  if (now.code() != StatusCode::kResourceExhausted) return now;
  if (backlog_.size() >= kBacklogMax) return now;
  UniqueFd kept(fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (fd >= 0 && !kept) return Status::from_errno(errno, "keeping a descriptor to send");
  backlog_.push_back({{frame.bytes().begin(), frame.bytes().end()}, 0, std::move(kept)});
  return {};
}

Status SocketChannel::flush() {
  while (!backlog_.empty()) {
    Kept& kept = backlog_.front();
    RRPC_ASSIGN_OR_RETURN(Sent sent, try_send(kept.bytes, kept.fd.get(), &kept.sent_bytes));
    if (sent == Sent::kNoRoom) return {};
    backlog_.pop_front();
  }
  return {};
}

Status SocketChannel::take_fds(msghdr& header) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      input_->fds.emplace_back(fd);
    }
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0)
    return Status::protocol_error("descriptors from the peer were lost: too many at once, or none free here");
  if (input_->fds.size() > kFdsWaitingMax) return Status::protocol_error("the peer sends descriptors without messages");
  return {};
}

// False when nothing waits.
Result<bool> SocketChannel::fill() {
  Input& input = *input_;
  if (input.begin > 0) {
    std::memmove(input.buffer.data(), input.buffer.data() + input.begin, input.end - input.begin);
    input.end -= std::exchange(input.begin, 0);
  }
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerReceiveMax * sizeof(int))];
  iovec iov{input.buffer.data() + input.end, input.buffer.size() - input.end};
  for (;;) {
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t count = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count == 0 || (count < 0 && (errno == ECONNRESET || errno == EPIPE))) return closed_by_peer();
    if (count < 0) return Status::from_errno(errno, "reading the connection's socket");
    input.end += static_cast<size_t>(count);
    RRPC_RETURN_IF_ERROR(take_fds(header));
    return true;
  }
}

Result<std::optional<Message>> SocketChannel::parse() {
  if (!input_->preamble_seen) {
    RRPC_ASSIGN_OR_RETURN(bool complete, check_preamble(unread()));
    if (!complete) return std::optional<Message>();
    input_->preamble_seen = true;
    input_->begin += kPreambleBytes;
  }
  RRPC_ASSIGN_OR_RETURN(const std::optional<Received> received, parse_message(unread()));
  if (!received) return std::optional<Message>();
  Message message{received->type, received->payload, {}};
  input_->begin += received->bytes();
  if (carries_fd(message.type)) {
    if (input_->fds.empty()) return Status::protocol_error("a message on the shm socket lacks its descriptor");
    message.fd = std::move(input_->fds.front());
    input_->fds.pop_front();
  }
  return std::optional<Message>(std::move(message));
}

Result<std::optional<Message>> SocketChannel::next() {
  for (;;) {
    RRPC_ASSIGN_OR_RETURN(std::optional<Message> message, parse());
    if (message) return message;
    RRPC_ASSIGN_OR_RETURN(bool more, fill());
    if (!more) return std::optional<Message>();
  }
}

bool SocketChannel::peer_gone() const {
  if (!socket_) return true;
  pollfd entry{socket_.get(), 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace rrpc::provider::shm
