// What a user may set of one connection, with the bounds that keep it finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "endpoint/endpoint.h"
#include "rpc/budget.h"

namespace rrpc::rpc {

struct SessionOptions {
  endpoint::Geometry geometry;
  uint32_t calls_in_flight_max = 16384;
  // 0, in the next three: what Budgets have for one connection.
  size_t landing_bytes_max = 0;              // of arguments and items that land at a time
  size_t exposed_bytes_max = 0;              // of results and items that wait for their reader
  size_t queued_bytes_max = 0;               // of messages that wait for a worker, for landing memory or for credits
  size_t lent_bytes_max = 0;                 // that the peer may read in place; 0: what Lending has for all
  uint64_t message_bytes_max = 64 << 20;     // of a request, a reply or an item, without its arrays
  uint32_t buffers_max = 16384;              // of a request, a reply or an item; pieces of strided arrays count
  uint32_t stream_window_items = 1024;       // that a peer may be ahead of those taken, of each stream
  uint64_t stream_window_bytes = 8 << 20;    // and their bytes
  uint32_t metadata_bytes_max = 8192;        // of a request or a reply; the wire has 16 bits for it
  TimeNs keepalive_interval = 10 * kSecond;  // silence after which the peer is probed
  TimeNs keepalive_timeout = 10 * kSecond;   // and further silence after which it is given up
  TimeNs lease_timeout = 60 * kSecond;       // how long a result waits for its reader
  TimeNs fetch_timeout = 10 * kSecond;       // how long nothing may come of a fetch under way
  std::shared_ptr<Budgets> budgets;          // that connections share; null: the process's
};

// What may stand beside the payload in the body of a message: the fixed part, descriptors, the name, metadata.
inline uint64_t body_overhead_max(const SessionOptions& options, bool sealed) {
  constexpr uint64_t kSealBytesMax = endpoint::seal_wire_bytes(kMessageBytesMax, endpoint::kSealPiecesMax);
  const uint64_t descriptor_bytes =
      endpoint::kDescriptorWireBytes + (sealed ? kSealBytesMax : endpoint::kRailKeysWireBytes);
  return 64 + options.buffers_max * descriptor_bytes + 2 * UINT16_MAX;
}

// The errors of the checks below, out of line to keep these small. `whose`: "the request", "the reply", ...
namespace excess {
[[gnu::cold]] Status message(uint64_t length_bytes, const SessionOptions& options, const char* whose);
[[gnu::cold]] Status buffers(size_t count, uint32_t most, const char* whose);
[[gnu::cold]] Status descriptors(size_t count, const SessionOptions& options);
[[gnu::cold]] Status metadata(size_t length_bytes, const SessionOptions& options, const char* whose);
}  // namespace excess

// `length_bytes`: of the payload, or of a body that may have as much as `overhead` beside it.
inline Status check_message(uint64_t length_bytes, const SessionOptions& options, const char* whose,
                            uint64_t overhead = 0) {
  if (length_bytes <= options.message_bytes_max || length_bytes - options.message_bytes_max <= overhead) return {};
  return excess::message(length_bytes, options, whose);
}

// `most`: what both ends allow.
inline Status check_buffers(size_t count, uint32_t most, const char* whose) {
  return count <= most ? Status() : excess::buffers(count, most, whose);
}

// Of a message that arrived. The peer was told the limit.
inline Status check_descriptors(size_t count, const SessionOptions& options) {
  return count <= options.buffers_max ? Status() : excess::descriptors(count, options);
}

inline Status check_metadata(size_t length_bytes, const SessionOptions& options, const char* whose) {
  return length_bytes <= options.metadata_bytes_max ? Status() : excess::metadata(length_bytes, options, whose);
}

}  // namespace rrpc::rpc
