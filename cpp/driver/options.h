// Options of a client or a server as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/numa.h"
#include "driver/policy.h"
#include "driver/protection.h"
#include "driver/transports.h"
#include "provider/tls.h"
#include "rpc/options.h"

namespace rrpc::driver {

enum class PollMode : uint8_t { kAdaptive, kBusy, kEvent };

constexpr uint32_t kUnlimited = UINT32_MAX;
constexpr uint32_t kPollersMax = 64;

struct Options {
  rpc::SessionOptions session;
  PollMode poll = PollMode::kAdaptive;
  TimeNs spin = 200 * kMicrosecond;  // how long adaptive polling spins before it sleeps
  TimeNs handshake_timeout = 10 * kSecond;
  uint32_t connections_max = 100'000;
  uint32_t pollers = 1;               // of a server's connections; 1: its workers, else so many threads, a share each
  std::optional<NumaNode> numa_node;  // of engines' threads, and of the process's pool
  uint32_t handshakes_max = 1024;     // connections at a time whose client hasn't said HELLO yet
  uint32_t max_concurrency = kUnlimited;     // handlers at work at a time
  uint32_t max_queue = kUnlimited;           // calls that wait beyond those
  double rate_limit = 0;                     // calls a second that a server takes; 0: any number
  double rate_burst = 0;                     // of them at once; 0: those of a second
  bool workers_contend = true;               // for a lock that handlers hold all the while, such as Python's GIL
  uint32_t stream_handlers_max = 256;        // of calls that take a stream, by workers; a quarter for one connection
  TimeNs max_connection_age = kNever;        // of a server: then the client is told to connect again
  TimeNs max_connection_age_grace = kNever;  // from there until the connection is closed
  bool any_user = false;
  std::optional<Principals> clients;                       // of a server: who may connect; nothing: everybody who can
  std::vector<std::string> transports = all_transports();  // that rrpc:// may use, best first
  bool tls = false;                              // also of rrpc:// and tcp://; rrpcs:// and tcps:// have it always
  provider::TlsOptions files;                    // with any of which it is on
  Protection rdma_security = Protection::kNone;  // of verbs behind rrpcs://
  uint32_t shared_receive_slots = 0;  // of each listener whose transport shares receives; 0: a ring for each connection

  bool wants_tls() const { return tls || files != provider::TlsOptions(); }
  TimeNs spin_ns() const {
    if (poll == PollMode::kBusy) return kNever;
    return poll == PollMode::kEvent ? 0 : spin;
  }
};

}  // namespace rrpc::driver
