// The pace of a spinning thread: a few microseconds at full speed, then with a yield now and again. Where two
// threads that wait for each other share a core, only the yield lets the other one answer.
#pragma once

#include <sched.h>

#include "base/clock.h"

namespace rrpc::driver {

class Spinner {
 public:
  // Between two polls of which the first found nothing. True when it is time to look at the clock.
  bool pause() {
    cpu_relax();
    ++polls_;
    if (polls_ >= kPollsBeforeYield && polls_ % kPollsPerYield == 0) sched_yield();
    return polls_ % kPollsPerClockRead == 0;
  }
  void found_something() { polls_ = 0; }

 private:
  static constexpr unsigned kPollsBeforeYield = 32;
  static constexpr unsigned kPollsPerYield = 8;
  static constexpr unsigned kPollsPerClockRead = 16;
  unsigned polls_ = 0;
};

}  // namespace rrpc::driver
