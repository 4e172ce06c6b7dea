// Work that nobody waits for, on one thread of the process, which ends when there is none.
#pragma once

#include <functional>

namespace rrpc {

// In the order given. False: too much waits already, or no thread is to be had; the job won't run. A forked child
// forgets its parent's jobs.
bool run_behind(std::function<void()> job);

// Whether that thread has something to do now.
bool working_behind();

}  // namespace rrpc
