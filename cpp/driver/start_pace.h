// Decides whether a request may wait for the next one, so that several go out with one doorbell.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace rrpc::driver {

// A request may wait only where its caller has shown that it comes back at once, to begin another call or to wait for
// one, and while the peer has several times as many calls of the same connection to answer. Not thread-safe: the
// connection's mutex guards it.
class StartPace {
 public:
  // A call is begun that nobody waits for yet, with so many others in flight.
  bool may_wait(TimeNs now, size_t in_flight) {
    came_back(now);
    waited_ = false;
    held_ = in_a_row_ >= kRowMin && (held_ + 1) * kShare <= in_flight ? held_ + 1 : 0;
    return held_ > 0;
  }
  // A caller is going to wait, and thus to poll.
  void waits(TimeNs now) {
    if (waited_) return;
    came_back(now);
    waited_ = true;
    held_ = 0;
  }

  static constexpr TimeNs kSoon = 50 * kMicrosecond;  // between two calls that follow each other at once
  static constexpr int kRowMin = 8;                   // so many have done so
  static constexpr size_t kShare = 4;                 // of the calls in flight, so many for each that waits

 private:
  void came_back(TimeNs now) {
    in_a_row_ = waited_ || now - last_ < kSoon ? std::min(in_a_row_ + 1, kRowMin) : 0;
    last_ = now;
  }

  TimeNs last_ = 0;
  bool waited_ = false;  // since the last call was begun
  int in_a_row_ = 0;
  size_t held_ = 0;
};

}  // namespace rrpc::driver
