// Threads that last as long as the process.
#pragma once

#include <functional>

namespace rrpc {

// No signals are handled by it: these are for the threads of the user's program. It runs on the processors of the
// process's first thread, whichever thread starts it. False: no thread is to be had.
bool start_detached(std::function<void()> run);

}  // namespace rrpc
