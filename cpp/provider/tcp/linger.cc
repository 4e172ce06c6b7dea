#include "provider/tcp/linger.h"

#include <sys/socket.h>

#include <cerrno>

namespace rrpc::provider::tcp {

// Both return true if the connection is over.
bool Lingering::write_rest() {
  while (want_write()) {
    const ssize_t sent =
        ::send(fd(), rest_.data() + written_bytes_, rest_.size() - written_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno != EAGAIN && errno != EINTR;
    written_bytes_ += static_cast<size_t>(sent);
  }
  if (!shut_down_) {
    shut_down_ = true;
    std::vector<std::byte>().swap(rest_);
    written_bytes_ = 0;
    return ::shutdown(fd(), SHUT_WR) != 0;
  }
  return false;
}

bool Lingering::discard_input() {
  std::byte waste[16 << 10];
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = ::recv(fd(), waste, sizeof(waste), MSG_DONTWAIT);
    if (got < 0) return errno != EAGAIN && errno != EINTR;
    if (got == 0) return true;
  }
  return false;
}

bool Lingering::drive(TimeNs now) {
  const bool write_over = write_rest();
  return discard_input() || write_over || now >= deadline_;
}

}  // namespace rrpc::provider::tcp
