// What a user may set of one connection, with the bounds that keep it finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "endpoint/endpoint.h"

namespace rrpc::rpc {

struct SessionOptions {
  endpoint::Geometry geometry;
  uint32_t calls_in_flight_max = 16384;
  size_t exposed_bytes_max = size_t{1} << 40;
  uint32_t stream_window_items = 1024;       // that a peer may be ahead of those taken, of each stream
  uint64_t stream_window_bytes = 8 << 20;    // and their bytes
  uint32_t metadata_bytes_max = 8192;        // of a request or a reply; the wire has 16 bits for it
  TimeNs keepalive_interval = 10 * kSecond;  // silence after which the peer is probed
  TimeNs keepalive_timeout = 10 * kSecond;   // and further silence after which it is given up
  TimeNs lease_timeout = 60 * kSecond;       // how long a result waits for its reader
};

inline Status check_metadata(size_t length_bytes, const SessionOptions& options, const char* whose) {
  if (length_bytes <= options.metadata_bytes_max) return {};
  return resource_exhausted(std::string("metadata_bytes_max: ") + whose + " has " + std::to_string(length_bytes) +
                            " bytes of metadata, the limit is " + std::to_string(options.metadata_bytes_max));
}

}  // namespace rrpc::rpc
