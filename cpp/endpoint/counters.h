// What moved and how often it was copied: promise 10. Process-wide, relaxed, never reset.
#pragma once

#include <atomic>
#include <cstdint>

namespace rrpc::endpoint {

// X(name, meaning): the one list from which stats() is made.
#define RRPC_COUNTERS(X)                                                    \
  X(calls_started, "calls this process began")                             \
  X(calls_ended, "of those, ended in any way")                             \
  X(calls_served, "calls this process answered")                           \
  X(messages_sent, "SEND messages")                                        \
  X(messages_received, "messages received")                                \
  X(bytes_inline_sent, "bytes sent inside messages")                       \
  X(bytes_inline_received, "bytes received inside messages")               \
  X(reads, "remote reads finished")                                        \
  X(bytes_read, "bytes fetched from peers by remote read")                 \
  X(writes, "remote writes finished")                                      \
  X(bytes_written, "bytes placed into peers' memory by remote write")      \
  X(stagings, "buffers copied into pool memory because the peer could not reach them") \
  X(bytes_staged, "bytes so copied")                                       \
  X(copies, "copies of bulk data made by rrpc, remote reads and writes excluded") \
  X(bytes_copied, "bytes so copied")                                       \
  X(registrations_made, "memory regions registered")                       \
  X(registrations_reused, "registrations found in the cache")              \
  X(exposures_live, "ranges open to peers now")                            \
  X(bytes_exposed, "bytes open to peers now")                              \
  X(pool_bytes_committed, "pool memory held from the system")              \
  X(pool_bytes_used, "of that, in use")                                    \
  X(connections_open, "connections open now")                              \
  X(leases_expired, "results taken back because the reader was too slow")

struct Counters {
#define RRPC_COUNTER_FIELD(name, meaning) std::atomic<int64_t> name{0};
  RRPC_COUNTERS(RRPC_COUNTER_FIELD)
#undef RRPC_COUNTER_FIELD
};

Counters& counters();

inline void count(std::atomic<int64_t>& counter, int64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace rrpc::endpoint
