// A server's clients: those that are let in, and those that have begun to connect. Each is in one engine's care; their
// numbers are the server's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "driver/connection.h"

namespace rrpc::driver {

class Admissions {
 public:
  Admissions(size_t handshakes_max, size_t connections_max)
      : handshakes_max_(handshakes_max), connections_max_(connections_max) {}

  size_t handshakes_max() const { return handshakes_max_; }
  // As many have begun to connect as may at a time.
  bool full() const;
  // A client has begun to connect: it is half-open until it has said HELLO.
  void begin(const ConnectionRef& connection, TimeNs now);
  // It has said HELLO. False: as many are let in as may be.
  // A client that comes again by another way counts once: if `introducer` (may be null) is counted, the connection
  // takes over its place, and the introducer counts as half-open and leaves at `leave_at`.
  bool establish(Connection& connection, const ConnectionRef& introducer, TimeNs leave_at);
  // It is gone. An introducer that is still there has its place back. Does nothing for one that never began here.
  void end(Connection& connection);
  // The one that began first, if that is `age_min` ago, else null with the time when it will be in `may_go_at` (0:
  // there is none). It no longer counts.
  ConnectionRef take_oldest(TimeNs now, TimeNs age_min, TimeNs& may_go_at);

 private:
  struct HalfOpen {
    std::weak_ptr<Connection> connection;
    TimeNs since = 0;
  };

  const size_t handshakes_max_;
  const size_t connections_max_;
  mutable std::mutex mutex_;
  std::map<uint64_t, HalfOpen> half_open_;  // ids rise, so the oldest is the first
  size_t established_ = 0;
};

}  // namespace rrpc::driver
