// Calls that wait, of many connections: the connections take turns, the calls of each go in the order they came.
// Not thread-safe; every step is O(log n).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/recycler.h"
#include "driver/connection.h"

namespace rrpc::driver {

// Who handles a call: the workers, an event loop, or the worker that has only the built-in services.
enum class Lane : uint8_t { kWorkers, kLoop, kBuiltin };
inline constexpr std::array kLanes{Lane::kWorkers, Lane::kLoop, Lane::kBuiltin};

struct Work {
  uint64_t handle = 0;
  ConnectionRef connection;
  rpc::ServerCallRef call;
  TimeNs taken_at = 0;
  Lane lane = Lane::kWorkers;
  bool alone = false;      // when it was taken, no other ran or waited
  bool resumed = false;    // one that was parked
  bool aside = false;      // no worker has it
  bool returning = false;  // its own thread waits for a worker's place
};

// Handles rise, so the oldest call of a connection is its first. Once handled, a call is found by {0, handle}.
using WorkKey = std::pair<uint64_t, uint64_t>;  // connection, handle
using WorkAllocator = RecyclingAllocator<std::pair<const WorkKey, Work>>;
using WorkByKey = std::map<WorkKey, Work, std::less<>, WorkAllocator>;

class Turns {
 public:
  explicit Turns(const WorkAllocator& allocator) : calls_(allocator) {}
  bool empty() const { return calls_.empty(); }
  size_t size() const { return calls_.size(); }
  void add(WorkByKey::node_type node) { calls_.insert(std::move(node)); }
  void add(Work work) {
    const WorkKey key{work.connection->id(), work.handle};
    calls_.emplace(key, std::move(work));
  }
  // The oldest call of the next connection that `may` have one taken; an empty node if there is none.
  template <typename May>
  WorkByKey::node_type take(May may) {
    const uint64_t first = last_;
    for (bool wrapped = false;;) {
      auto it = calls_.upper_bound({last_, UINT64_MAX});
      if (it == calls_.end() || (wrapped && it->first.first > first)) {
        if (wrapped || calls_.empty()) break;
        wrapped = true;
        last_ = 0;
        continue;
      }
      last_ = it->first.first;
      if (may(last_)) return calls_.extract(it);
    }
    last_ = first;
    return {};
  }
  WorkByKey::node_type take_back(const WorkKey& key) { return calls_.extract(key); }
  // The oldest call of the connection; an empty node if it has none.
  WorkByKey::node_type take_of(uint64_t connection) {
    const auto it = calls_.lower_bound({connection, 0});
    if (it == calls_.end() || it->first.first != connection) return {};
    return calls_.extract(it);
  }
  // The handle of the connection's newest call; 0: it has none.
  uint64_t newest_of(uint64_t connection) const {
    const auto it = calls_.upper_bound({connection, UINT64_MAX});
    if (it == calls_.begin() || std::prev(it)->first.first != connection) return 0;
    return std::prev(it)->first.second;
  }
  WorkByKey take_all() { return std::exchange(calls_, WorkByKey(calls_.get_allocator())); }

 private:
  WorkByKey calls_;
  uint64_t last_ = 0;  // the connection whose turn was last; ids begin at 1
};

// How many of something each connection has.
class Tally {
 public:
  size_t total() const { return total_; }
  size_t of(uint64_t connection) const {
    const auto it = counts_.find(connection);
    return it == counts_.end() ? 0 : it->second;
  }
  // {count, connection} of the one that has most.
  std::pair<size_t, uint64_t> most() const {
    return by_count_.empty() ? std::pair<size_t, uint64_t>() : *by_count_.rbegin();
  }
  void add(uint64_t connection) {
    ++total_;
    move(connection, counts_[connection]++, +1);
  }
  void remove(uint64_t connection) {
    --total_;
    const auto it = counts_.find(connection);
    move(connection, it->second, -1);
    if (--it->second == 0) counts_.erase(it);
  }
  void clear() {
    total_ = 0;
    counts_.clear();
    by_count_.clear();
  }

 private:
  void move(uint64_t connection, size_t from, int by) {
    if (from > 0) by_count_.erase({from, connection});
    if (from + static_cast<size_t>(by) > 0) by_count_.emplace(from + static_cast<size_t>(by), connection);
  }

  size_t total_ = 0;
  std::unordered_map<uint64_t, size_t> counts_;
  std::set<std::pair<size_t, uint64_t>> by_count_;
};

}  // namespace rrpc::driver
