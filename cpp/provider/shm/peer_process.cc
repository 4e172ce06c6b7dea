#include "provider/shm/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SO_PEERPIDFD  // Linux 6.5
#define SO_PEERPIDFD 77
#endif

namespace rrpc::provider::shm {

Result<PeerProcess> PeerProcess::of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return Status::from_errno(errno, "asking for the peer's credentials");
  PeerProcess process;
  process.pid_ = credentials.pid;
  process.uid_ = credentials.uid;
  process.other_user_ = credentials.uid != geteuid();
  return process;
}

// An older kernel opens by number: a process whose end of the socket is open afterwards hasn't lost it before.
bool PeerProcess::hold(int socket) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) != 0) {
    fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd peer{socket, 0, 0};
    if (::poll(&peer, 1, 0) != 0) pid_ = 0;
  }
  pidfd_.reset(fd);
  return pid_ > 0 && !ended();
}

bool PeerProcess::ended() const {
  pollfd process{pidfd_.get(), POLLIN, 0};
  return !pidfd_ || ::poll(&process, 1, 0) != 0;
}

}  // namespace rrpc::provider::shm
