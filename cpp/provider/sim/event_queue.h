// The virtual clock and what is to happen on it. Events of the same instant run in the order scheduled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rrpc::provider::sim {

class EventQueue {
 public:
  using Action = std::function<void()>;

  TimeNs now() const { return now_; }
  TimeNs next_time() const { return heap_.empty() ? kNever : heap_.front().time; }

  void at(TimeNs time, Action action) {
    heap_.push_back({std::max(time, now_), sequence_++, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void after(TimeNs delay, Action action) { at(deadline_after(now_, delay), std::move(action)); }

  bool step() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.time;
    event.action();
    return true;
  }
  void run_until(TimeNs time) {
    while (next_time() <= time && step()) {
    }
    now_ = std::max(now_, time);
  }

 private:
  struct Event {
    TimeNs time;
    uint64_t sequence;
    Action action;
  };
  static bool later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
  }

  TimeNs now_ = 0;
  uint64_t sequence_ = 0;
  std::vector<Event> heap_;
};

}  // namespace rrpc::provider::sim
