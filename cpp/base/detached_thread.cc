#include "base/detached_thread.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <exception>
#include <thread>
#include <utility>

namespace rrpc {

// Who starts the thread may be bound to a node's processors, and the thread is for the whole process.
static void run_where_the_process_may() {
  constexpr size_t kSets = 8;  // of 1,024 processors each; with more this thread stays where it was started
  std::array<cpu_set_t, kSets> allowed{};
  if (sched_getaffinity(getpid(), sizeof(allowed), allowed.data()) == 0)
    (void)sched_setaffinity(0, sizeof(allowed), allowed.data());
}

bool start_detached(std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([run = std::move(run)] {
      run_where_the_process_may();
      run();
    }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace rrpc
