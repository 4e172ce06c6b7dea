// Work that nobody waits for, on threads of the process that end when there has been none for a while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace rrpc {

// Each kind of work has a queue and a thread of its own, since ending a connection may wait for its peer.
enum class Behind : uint8_t {
  kMemory,  // faults in and unmaps memory; at most 64 jobs wait
  kEnds,    // destroys connections; whoever makes connections bounds how many wait (wait_behind, waiting_behind)
};

// Runs `job` in the order given. False: too much waits already, or no thread is to be had; the job won't run. A forked
// child forgets its parent's jobs.
bool run_behind(Behind kind, std::function<void()> job);

// Whether one of the threads has something to do now.
bool working_behind();

// Whether this is the thread that runs such jobs.
bool runs_behind(Behind kind);

// Returns the number of jobs given that aren't done.
size_t waiting_behind(Behind kind);

// Waits until at most `left` of the jobs given before this call aren't done, or until the deadline. Returns at once on
// the thread that runs them.
void wait_behind(Behind kind, size_t left = 0, TimeNs deadline = kNever);

}  // namespace rrpc
