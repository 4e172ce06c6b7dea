// A timer that one thread sleeps for, and that others set: to set it or to stop it wakes nobody.
#pragma once

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace rrpc::driver {

class Alarm {
 public:
  // False: no file descriptors are left.
  bool open() {
    if (!timer_) timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    return static_cast<bool>(timer_);
  }
  // Rings once, so long from now, in place of what was set before.
  void set(TimeNs after) { settle({after / kSecond, std::max<TimeNs>(after, 1) % kSecond}); }
  void ring() { set(0); }
  void stop() { settle({}); }
  // Until it rings, which it then has, or for so long.
  void wait(TimeNs most) {
    pollfd timer{timer_.get(), POLLIN, 0};
    const timespec limit{most / kSecond, most % kSecond};
    (void)ppoll(&timer, 1, most == kNever ? nullptr : &limit, nullptr);
    uint64_t rung = 0;
    (void)!read(timer_.get(), &rung, sizeof(rung));
  }

 private:
  void settle(timespec when) {
    const itimerspec once{{}, when};
    (void)timerfd_settime(timer_.get(), 0, &once, nullptr);
  }

  UniqueFd timer_;
};

}  // namespace rrpc::driver
