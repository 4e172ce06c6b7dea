// A token bucket for calls: `burst` at once, and `rate` a second after that. It has no clock: time is passed in.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace rrpc::driver {

class RateLimit {
 public:
  // rate 0: no limit. burst 0: the calls of a second.
  RateLimit(double rate, double burst)
      : interval_(rate > 0 ? static_cast<TimeNs>(static_cast<double>(kSecond) / rate) : 0),
        slack_(static_cast<TimeNs>(static_cast<double>(interval_) * (std::max(burst > 0 ? burst : rate, 1.0) - 1))) {}

  bool limits() const { return interval_ > 0; }
  // How long until there is room for a call; 0 or less: there is.
  TimeNs wait(TimeNs now) const { return next_ - slack_ - now; }
  // The same, and takes the room if there is some.
  TimeNs take(TimeNs now) {
    const TimeNs left = wait(now);
    if (left <= 0) next_ = std::max(next_, now) + interval_;
    return left;
  }

 private:
  TimeNs interval_;
  TimeNs slack_;
  TimeNs next_ = 0;  // when the next call would come, if all came evenly
};

}  // namespace rrpc::driver
