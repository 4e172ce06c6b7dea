// When connections are to be looked at. One entry for each connection at most, so that what a peer asks for costs no
// more memory than its connection; noting and taking cost O(log connections), and what isn't due costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rrpc::driver {

// A connection's place among the timers.
struct Timer {
  explicit Timer(uint64_t connection) : id(connection) {}
  const uint64_t id;
  std::atomic<TimeNs> at{kNever};  // written under the mutex of Timers
};

// Thread-safe; a leaf among the mutexes.
class Timers {
 public:
  // The connection is due no later than that.
  void note(Timer& timer, TimeNs deadline) {
    if (deadline >= timer.at.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    const TimeNs before = timer.at.load(std::memory_order_relaxed);
    if (deadline >= before) return;
    timer.at.store(deadline, std::memory_order_relaxed);
    if (auto node = entries_.extract({before, timer.id}); !node.empty()) {
      node.value().first = deadline;
      entries_.insert(std::move(node));
    } else {
      entries_.emplace(deadline, timer.id);
    }
  }

  // The connection is due then and not before. kNever: not at all.
  void set(Timer& timer, TimeNs deadline) {
    std::lock_guard lock(mutex_);
    entries_.erase({timer.at.load(std::memory_order_relaxed), timer.id});
    timer.at.store(deadline, std::memory_order_relaxed);
    if (deadline != kNever) entries_.emplace(deadline, timer.id);
  }

  // The ids of those that are due by now, each of which is to be set again.
  std::vector<uint64_t> take_due(TimeNs now) {
    std::vector<uint64_t> due;
    std::lock_guard lock(mutex_);
    while (!entries_.empty() && entries_.begin()->first <= now) {
      due.push_back(entries_.begin()->second);
      entries_.erase(entries_.begin());
    }
    return due;
  }

  TimeNs next() const {
    std::lock_guard lock(mutex_);
    return entries_.empty() ? kNever : entries_.begin()->first;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::pair<TimeNs, uint64_t>> entries_;
};

}  // namespace rrpc::driver
