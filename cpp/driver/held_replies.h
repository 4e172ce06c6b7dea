// Replies of one worker that wait for its next ones, so that several go out with one doorbell.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/clock.h"
#include "driver/connection.h"

namespace rrpc::driver {

// Measures how long a method's handler takes at most, of late. An unknown handler is not quick.
class LongestTime {
 public:
  void took(TimeNs time) { longest_ = std::max(time, longest_ - longest_ / kFading); }
  bool quick() const { return longest_ <= kQuick; }

  static constexpr TimeNs kQuick = 20 * kMicrosecond;
  static constexpr TimeNs kUnknown = kMillisecond;
  static constexpr TimeNs kFading = 16;  // a long time is forgotten by so much with each call

 private:
  TimeNs longest_ = kUnknown;
};

// Lists the connections with such replies. All of them were hot when they were added, and every poll of a connection
// sends what waits there. So a reply waits no longer than two ticks of the engine's thread, even if the worker stays
// away or ends. Not thread-safe: it belongs to the worker.
class HeldReplies {
 public:
  HeldReplies() = default;
  HeldReplies(const HeldReplies&) = delete;
  HeldReplies& operator=(const HeldReplies&) = delete;

  bool empty() const { return count_ == 0; }
  // Whether they may wait for a handler that begins now.
  bool may_wait_for(const LongestTime& handler, TimeNs now) const {
    return handler.quick() && now - since_ <= kLongest;
  }
  bool has_room_for(const ConnectionRef& connection) const { return count_ < kConnectionsMax || has(connection); }
  // There must be room for it.
  void add(const ConnectionRef& connection, TimeNs now) {
    if (count_ == 0) since_ = now;
    if (!has(connection)) connections_.at(count_++) = connection;
  }
  // Sends the replies and forgets the connections. Takes each connection's mutex.
  void ring();

  static constexpr size_t kConnectionsMax = 8;
  static constexpr TimeNs kLongest = 30 * kMicrosecond;

 private:
  bool has(const ConnectionRef& connection) const {
    for (size_t i = 0; i < count_; ++i)
      if (connections_.at(i) == connection) return true;
    return false;
  }

  std::array<ConnectionRef, kConnectionsMax> connections_;
  size_t count_ = 0;
  TimeNs since_ = 0;
};

}  // namespace rrpc::driver
