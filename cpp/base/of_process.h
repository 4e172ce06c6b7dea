// What a process has one of.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

namespace rrpc {

// The process's T: made when first asked for, and never destroyed, since threads may use it while the process ends. A
// forked child has another: the threads that served its parent's aren't there.
template <typename T>
T& of_process() {
  static std::atomic<T*> g_instance{nullptr};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_instance.store(nullptr); });
  (void)registered;
  T* existing = g_instance.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  auto made = std::make_unique<T>();
  if (g_instance.compare_exchange_strong(existing, made.get())) return *made.release();
  return *existing;
}

}  // namespace rrpc
