// Whether a worker that leaves with a call has another one poll while it handles that.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace rrpc::driver {

// From any thread. Where calls come one at a time, another worker's wake-up for each would be in vain: a client that
// waits for its answer sends nothing meanwhile. Should some come together after all, the engine's next tick has another
// poll.
class HandlerTimes {
 public:
  // A handler is done.
  void took(TimeNs time) {
    const TimeNs average = average_.load(std::memory_order_relaxed);
    average_.store(average + (time - average) / 8, std::memory_order_relaxed);
  }
  // A worker takes a call; `alone`: no other ran or waited. Whether another worker is to poll.
  bool wants_poller(bool alone, TimeNs now) {
    last_taken_.store(now, std::memory_order_relaxed);
    const int in_a_row = alone ? std::min(alone_in_a_row_.load(std::memory_order_relaxed) + 1, kAloneMin) : 0;
    alone_in_a_row_.store(in_a_row, std::memory_order_relaxed);
    return average_.load(std::memory_order_relaxed) > (in_a_row < kAloneMin ? kSlow : kVerySlow);
  }

  bool calls_come_alone() const { return alone_in_a_row_.load(std::memory_order_relaxed) == kAloneMin; }

  // Returns whether a worker takes brief calls one after the other, so that another worker would only contend for the
  // lock that handlers hold (Options::workers_contend).
  bool moves_on(TimeNs now) const {
    return average_.load(std::memory_order_relaxed) < kBrief &&
           now - last_taken_.load(std::memory_order_relaxed) < kLately;
  }

  static constexpr TimeNs kBrief = 10 * kMicrosecond;
  static constexpr TimeNs kLately = 200 * kMicrosecond;
  static constexpr TimeNs kSlow = 50 * kMicrosecond;       // on average: worth a wake-up,
  static constexpr TimeNs kVerySlow = 500 * kMicrosecond;  // or only so, where
  static constexpr int kAloneMin = 64;                     // so many calls in a row came alone

 private:
  std::atomic<TimeNs> average_{0};
  std::atomic<TimeNs> last_taken_{0};
  std::atomic<int> alone_in_a_row_{0};
};

}  // namespace rrpc::driver
