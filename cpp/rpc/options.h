// What a user may set of one connection, with the bounds that keep it finite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "endpoint/endpoint.h"

namespace rrpc::rpc {

struct SessionOptions {
  endpoint::Geometry geometry;
  uint32_t calls_in_flight_max = 16384;
  size_t exposed_bytes_max = size_t{1} << 40;
  TimeNs keepalive_interval = 10 * kSecond;  // silence after which the peer is probed
  TimeNs keepalive_timeout = 10 * kSecond;   // and further silence after which it is given up
  TimeNs lease_timeout = 60 * kSecond;       // how long a result waits for its reader
};

}  // namespace rrpc::rpc
