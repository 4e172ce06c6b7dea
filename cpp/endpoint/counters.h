// What moved and how often it was copied, in the process and by connection. Relaxed, never reset.
#pragma once

#include <atomic>
#include <cstdint>

namespace rrpc::endpoint {

// X(name, meaning): the one list from which stats() is made.
#define RRPC_COUNTERS(X)                                                               \
  X(calls_started, "calls this process began")                                         \
  X(calls_ended, "of those, ended in any way")                                         \
  X(calls_served, "calls this process answered")                                       \
  X(calls_refused, "of those, refused by a limit or while shutting down")              \
  X(calls_over_rate, "of those, refused by rate_limit")                                \
  X(calls_denied, "of those, refused because their caller may not make them")          \
  X(messages_sent, "SEND messages")                                                    \
  X(messages_received, "messages received")                                            \
  X(bytes_inline_sent, "bytes sent inside messages")                                   \
  X(bytes_inline_received, "bytes received inside messages")                           \
  X(credit_waits, "requests and replies that had to wait for the peer's credits")      \
  X(landing_waits, "calls and items that had to wait for landing memory")              \
  X(reply_waits, "calls that had to wait until their client took earlier replies")     \
  X(reads, "remote reads finished")                                                    \
  X(bytes_read, "bytes fetched from peers by remote read")                             \
  X(bytes_read_by_rails, "of those, by the connection's rails")                        \
  X(writes, "remote writes finished")                                                  \
  X(bytes_written, "bytes placed into peers' memory by remote write")                  \
  X(stagings, "buffers copied into pool memory because the peer could not reach them") \
  X(bytes_staged, "bytes so copied")                                                   \
  X(copies, "copies of bulk data made by rrpc, remote reads and writes excluded")      \
  X(bytes_copied, "bytes so copied")                                                   \
  X(registrations_made, "memory regions registered")                                   \
  X(registrations_reused, "registrations found in the cache")                          \
  X(exposures_live, "ranges open to peers now")                                        \
  X(bytes_exposed, "bytes open to peers now")                                          \
  X(lent_bytes, "bytes lent to peers now, which may read them in place")               \
  X(ranges_kept, "ranges that a peer kept beyond the call they were lent for")         \
  X(lendings_over_limit, "ranges copied because lent_bytes_max had no room")           \
  X(ranges_borrowed, "ranges of peers' memory read in place")                          \
  X(bytes_borrowed, "their bytes")                                                     \
  X(exposures_by_window, "ranges ever opened by binding a memory window")              \
  X(exposures_by_registration, "ranges ever opened by a registration of their own")    \
  X(exposures_by_check, "ranges ever opened where software checks each access")        \
  X(exposures_invalidated, "ranges of peers that the reply to them has closed")        \
  X(arrays_changed, "arrays changed while a peer could read them; by check_arrays")    \
  X(shared_receive_low, "times when few shared receives were left")                    \
  X(pool_bytes_committed, "pool memory held from the system")                          \
  X(pool_bytes_used, "of that, in use")                                                \
  X(connections_open, "connections open now")                                          \
  X(leases_expired, "results taken back because the reader was too slow")

// Those that are kept by connection too.
// clang-format off
#define RRPC_CONNECTION_COUNTERS(X) \
  X(calls_started) \
  X(calls_ended) \
  X(calls_served) \
  X(calls_refused) \
  X(messages_sent) \
  X(messages_received) \
  X(bytes_inline_sent) \
  X(bytes_inline_received) \
  X(credit_waits) \
  X(landing_waits) \
  X(reads) \
  X(bytes_read) \
  X(bytes_read_by_rails) \
  X(writes) \
  X(bytes_written) \
  X(stagings) \
  X(bytes_staged) \
  X(copies) \
  X(bytes_copied) \
  X(exposures_live) \
  X(bytes_exposed) \
  X(ranges_borrowed) \
  X(bytes_borrowed) \
  X(exposures_by_window) \
  X(exposures_by_registration) \
  X(exposures_by_check) \
  X(exposures_invalidated)
// clang-format on

struct Counters {
#define RRPC_COUNTER_FIELD(name, meaning) std::atomic<int64_t> name{0};
  RRPC_COUNTERS(RRPC_COUNTER_FIELD)
#undef RRPC_COUNTER_FIELD
};

// Of what isn't counted by connection.
Counters& counters();

// Those of one connection, written by one thread at a time: no locked instruction, and no cache line that connections
// share. They count for the process as long as it lasts.
class ConnectionCounters : public Counters {
 public:
  ConnectionCounters();
  ~ConnectionCounters();
  ConnectionCounters(const ConnectionCounters&) = delete;
  ConnectionCounters& operator=(const ConnectionCounters&) = delete;

  void count(std::atomic<int64_t> Counters::* counter, int64_t amount) {
    std::atomic<int64_t>& value = this->*counter;
    value.store(value.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
};

// Of the process: its own and those of all connections, open and closed.
void add_totals(Counters& sum);
int64_t total(std::atomic<int64_t> Counters::* counter);

inline void count(std::atomic<int64_t>& counter, int64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace rrpc::endpoint
