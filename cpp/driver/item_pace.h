// Decides whether an item may wait for the next one, so that several go out in one message and with one doorbell.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace rrpc::driver {

// An item may wait only where those before it have followed each other at once. Who sends items of an iterator can't
// know whether that is about to stall: what waits then is sent by the next poll (Engine::polls_soon). Each stall of
// that kind doubles the number of items that must follow each other before the next one waits, so the last items of
// short bursts soon go at once. kRowMax items without a stall are no burst: the number is the first one again. Of the
// one thread that sends the items.
class ItemPace {
 public:
  bool may_wait() const { return in_a_row_ >= needed_ && (held_since_ == kNever || last_ - held_since_ < kHeldFor); }
  // The item that the last may_wait() was about has gone, or waits.
  void sent(TimeNs now, bool waits) {
    const bool at_once = now - last_ < kSoon;
    if (!at_once && held_since_ != kNever) needed_ = std::min(2 * needed_, kRowMax);
    if (at_once)
      followed();
    else
      in_a_row_ = 0;
    held_since_ = !waits ? kNever : held_since_ == kNever || !at_once ? now : held_since_;
    last_ = now;
  }
  // Sending begins, or goes on after an item for which the connection's mutex or room may have been waited for: nothing
  // waits now, and the time that this took says nothing of the iterator.
  void resume(TimeNs now) {
    held_since_ = kNever;
    last_ = now;
  }

  static constexpr TimeNs kSoon = 20 * kMicrosecond;     // between two items that follow each other at once
  static constexpr TimeNs kHeldFor = 50 * kMicrosecond;  // then one goes at once, and with it those that wait
  static constexpr int kRowMin = 8;                      // so many follow each other, before one waits,
  static constexpr int kRowMax = 256;                    // and up to so many after stalls

 private:
  void followed() {
    in_a_row_ = std::min(in_a_row_ + 1, kRowMax);
    if (in_a_row_ == kRowMax) needed_ = kRowMin;
  }

  TimeNs last_ = 0;
  TimeNs held_since_ = kNever;  // when the first of those that wait was sent
  int in_a_row_ = 0;
  int needed_ = kRowMin;
};

}  // namespace rrpc::driver
