#include "provider/shm/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/of_process.h"

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
  process.gid_ = credentials.gid;
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

namespace {

struct SharedProcesses {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<PeerProcess>> processes;
};

}  // namespace

// Two processes that both live have two pids.
std::shared_ptr<PeerProcess> PeerProcess::share(std::shared_ptr<PeerProcess> held) {
  auto& shared = of_process<SharedProcesses>();
  std::lock_guard lock(shared.mutex);
  std::weak_ptr<PeerProcess>& entry = shared.processes[held->pid()];
  if (auto known = entry.lock(); known != nullptr && known->held() && !known->ended() && !held->ended()) return known;
  std::erase_if(shared.processes,
                [&](const auto& other) { return other.first != held->pid() && other.second.expired(); });
  shared.processes[held->pid()] = held;
  return held;
}

bool PeerProcess::ended() const {
  pollfd process{pidfd_.get(), POLLIN, 0};
  return !pidfd_ || ::poll(&process, 1, 0) != 0;
}

}  // namespace rrpc::provider::shm
