#include "provider/tcp/wire.h"

#include <sys/socket.h>

#include <cerrno>

namespace rrpc::provider::tcp {

static msghdr message_of(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

TlsChannel::Outcome Wire::receive(std::span<iovec> parts) const {
  if (tls != nullptr) return tls->read(fd, parts);
  msghdr message = message_of(parts);
  const ssize_t got = parts.size() == 1 ? ::recv(fd, parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT)
                                        : ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (got < 0) return {.error_number = errno == EINTR ? EAGAIN : errno};
  return {.bytes = static_cast<size_t>(got), .end_of_stream = got == 0};
}

TlsChannel::Outcome Wire::send(std::span<iovec> parts) const {
  if (tls != nullptr) return tls->write(fd, parts);
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  msghdr message = message_of(parts);
  const ssize_t sent =
      parts.size() == 1 ? ::send(fd, parts[0].iov_base, parts[0].iov_len, kFlags) : ::sendmsg(fd, &message, kFlags);
  if (sent < 0) return {.error_number = errno == EINTR || errno == ENOBUFS ? EAGAIN : errno};
  return {.bytes = static_cast<size_t>(sent)};
}

}  // namespace rrpc::provider::tcp
