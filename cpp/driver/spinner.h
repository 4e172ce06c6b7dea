// The pace of a spinning thread: a few microseconds at full speed, then with a yield now and again. Where two
// threads that wait for each other share a core, only the yield lets the other one answer; a PAUSE beside it gains
// nothing measurable, and in a virtual machine it may take longer than the poll. Where the core is wanted
// by something that keeps it (a yield that takes long tells), a sleeper is served sooner than one who spins: so
// nobody in this process spins for a while.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace rrpc::driver {

class Spinner {
 public:
  // Between two polls of which the first found nothing. True when it is time to look at the clock.
  bool pause() {
    ++polls_;
    if (polls_ >= kPollsAtFullSpeed && polls_ % kPollsPerYield == 0) yield();
    return polls_ % kPollsPerClockRead == 0;
  }
  void found_something() { polls_ = 0; }

  static bool crowded(TimeNs now) { return now < crowded_until_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned kPollsAtFullSpeed = 32;
  static constexpr unsigned kPollsPerYield = 16;
  static constexpr unsigned kPollsPerClockRead = 16;
  static constexpr TimeNs kLongYield = 500 * kMicrosecond;
  static constexpr TimeNs kLossMax = 6 * kMillisecond;
  static constexpr TimeNs kRestMin = 20 * kMillisecond;
  static constexpr TimeNs kRestMax = 320 * kMillisecond;

  // Long yields add up, half of the time that passes is forgiven: spinning ends where it loses more than that.
  static void yield() {
    const TimeNs begin = now_ns();
    sched_yield();
    const TimeNs end = now_ns();
    if (end - begin < kLongYield) return;
    const TimeNs passed = end - counted_until_.exchange(end, std::memory_order_relaxed);
    const TimeNs loss = std::max<TimeNs>(loss_.load(std::memory_order_relaxed) - passed / 2, 0) + end - begin;
    loss_.store(loss, std::memory_order_relaxed);
    if (loss < kLossMax) return;
    // Soon after the last rest: a longer one.
    const TimeNs last = rest_.load(std::memory_order_relaxed);
    const bool again = begin - crowded_until_.load(std::memory_order_relaxed) < kRestMin;
    const TimeNs rest = again ? std::min(last * 2, kRestMax) : kRestMin;
    rest_.store(rest, std::memory_order_relaxed);
    crowded_until_.store(end + rest, std::memory_order_relaxed);
    counted_until_.store(end + rest, std::memory_order_relaxed);
  }

  unsigned polls_ = 0;
  static inline std::atomic<TimeNs> loss_{0};
  static inline std::atomic<TimeNs> counted_until_{0};
  static inline std::atomic<TimeNs> crowded_until_{0};
  static inline std::atomic<TimeNs> rest_{kRestMin};
};

// How long to spin before sleeping: as long as may be where that pays, less and less where what comes next always takes
// longer, as for a server whose clients are busy with large results. (KVM's halt polling does the same.)
class SpinTime {
 public:
  TimeNs now(TimeNs most) const { return most == kNever ? kNever : std::min(most, allowed_); }
  // Something came after so long, which a spin of `most` would have waited for or not.
  void came_after(TimeNs quiet, TimeNs most) {
    if (quiet <= most)
      allowed_ = kNever;
    else
      allowed_ = std::min(allowed_, most) / 2;
  }

 private:
  TimeNs allowed_ = kNever;
};

}  // namespace rrpc::driver
