// After fork() a child holds copies of the parent's sockets: the parent's peers would not see its death while the
// child lives, and a listener's path would look alive. The guard takes these copies away in the child.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/unique_fd.h"

namespace rrpc::provider::shm {

// Goes up in the child at each fork: what was made under another number is the parent's, and so is the shared memory
// that it would touch.
namespace internal {
extern std::atomic<uint32_t> generation;
}
inline uint32_t fork_generation() { return internal::generation.load(std::memory_order_relaxed); }

class GuardedFd {
 public:
  GuardedFd() = default;
  explicit GuardedFd(UniqueFd fd);
  GuardedFd(GuardedFd&& other) noexcept = default;
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  ~GuardedFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset();

 private:
  UniqueFd fd_;
};

}  // namespace rrpc::provider::shm
