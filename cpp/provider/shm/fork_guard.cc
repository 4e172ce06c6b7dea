#include "provider/shm/fork_guard.h"
#include "base/at_fork.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace rrpc::provider::shm {

std::atomic<uint32_t> internal::generation{0};

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_set<int> fds;
};

Registry& g_registry = *new Registry;  // never destroyed: a fork may come at any time until the end

void before_fork() { g_registry.mutex.lock(); }
void after_fork_in_parent() { g_registry.mutex.unlock(); }

// The numbers stay taken, by a socket that leads nowhere, so that the child's objects close what is theirs.
void after_fork_in_child() {
  internal::generation.fetch_add(1, std::memory_order_relaxed);
  const int nowhere = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (const int fd : g_registry.fds) dup3(nowhere, fd, O_CLOEXEC);
  if (nowhere >= 0) close(nowhere);
  g_registry.mutex.unlock();
}

const AtFork kRegistryAtFork{before_fork, after_fork_in_parent, after_fork_in_child};

}  // namespace

GuardedFd::GuardedFd(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_) return;
  std::lock_guard lock(g_registry.mutex);
  g_registry.fds.insert(fd_.get());
}

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  fd_ = std::move(other.fd_);
  return *this;
}

void GuardedFd::reset() {
  if (!fd_) return;
  std::lock_guard lock(g_registry.mutex);
  g_registry.fds.erase(fd_.get());
  fd_.reset();
}

}  // namespace rrpc::provider::shm
