// Monotonic time in nanoseconds, and the pause between two polls of a spinning thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <limits>

namespace rrpc {

using TimeNs = int64_t;

constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
constexpr TimeNs kMicrosecond = 1'000;
constexpr TimeNs kMillisecond = 1'000'000;
constexpr TimeNs kSecond = 1'000'000'000;

inline TimeNs now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<TimeNs>(ts.tv_sec) * kSecond + ts.tv_nsec;
}

// now + timeout without overflow; kNever stays kNever.
inline TimeNs deadline_after(TimeNs now, TimeNs timeout) { return timeout >= kNever - now ? kNever : now + timeout; }

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace rrpc
