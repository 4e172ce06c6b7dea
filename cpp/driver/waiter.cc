#include "driver/waiter.h"

#include "driver/devices.h"

namespace rrpc::driver {

int Waiter::kick_fd_of_this_thread() {
  thread_local UniqueFd fd;
  thread_local int made_in = -1;
  if (made_in != fork_generation()) {
    fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    made_in = fd ? fork_generation() : -1;
  }
  return fd.get();
}

}  // namespace rrpc::driver
