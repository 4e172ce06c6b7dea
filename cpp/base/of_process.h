// What a process has one of.
#pragma once

#include <atomic>
#include <memory>

#include "base/at_fork.h"

namespace rrpc {

template <typename T>
struct OfProcess {
  static inline std::atomic<T*> instance_{nullptr};
  static inline const AtFork kAtFork{[] { instance_.store(nullptr); }};
};

// The process's T: made when first asked for, and never destroyed, since threads may use it while the process ends. A
// forked child has another: the threads that served its parent's aren't there.
template <typename T>
T& of_process() {
  (void)&OfProcess<T>::kAtFork;  // which nothing else would make
  std::atomic<T*>& instance = OfProcess<T>::instance_;
  T* existing = instance.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  auto made = std::make_unique<T>();
  if (instance.compare_exchange_strong(existing, made.get())) return *made.release();
  return *existing;
}

}  // namespace rrpc
