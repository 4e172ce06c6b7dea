#include "base/detached_thread.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <thread>
#include <utility>

namespace rrpc {

bool start_detached(std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace rrpc
