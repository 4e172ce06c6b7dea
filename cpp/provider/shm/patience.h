// The one place where this provider waits: for a peer that is in the middle of a copy into memory that is being taken
// back. A copy lasts some 100 µs at most, more only if the peer is off its processor.
#pragma once

#include <sched.h>

#include "base/clock.h"

namespace rrpc::provider::shm {

constexpr TimeNs kPatienceNs = 20 * kMillisecond;

template <typename Done, typename PeerGone>
bool wait_patiently(Done done, PeerGone peer_gone) {
  if (done()) return true;
  for (int spin = 0; spin < 1000; ++spin) {
    cpu_relax();
    if (done()) return true;
  }
  const TimeNs deadline = now_ns() + kPatienceNs;
  while (now_ns() < deadline && !peer_gone()) {
    sched_yield();
    if (done()) return true;
  }
  return done();
}

}  // namespace rrpc::provider::shm
