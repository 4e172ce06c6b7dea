#include "provider/verbs/async_watcher.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/detached_thread.h"
#include "provider/verbs/adapter.h"
#include "provider/verbs/fork.h"

namespace rrpc::provider::verbs {

AsyncWatcher& AsyncWatcher::process() {
  static std::mutex mutex;
  static AsyncWatcher* watcher = nullptr;
  static uint32_t generation = 0;
  std::lock_guard lock(mutex);
  if (watcher == nullptr || generation != fork_generation()) {
    watcher = new AsyncWatcher;
    generation = fork_generation();
  }
  return *watcher;
}

AsyncWatcher::AsyncWatcher() : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  // No threads left: connections end by their completions and by keep-alive, without the adapters' events.
  if (!start_detached([this] { run(); })) close(std::exchange(epoll_fd_, -1));
}

void AsyncWatcher::watch(Adapter* adapter) {
  const int fd = adapter->context()->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  {
    std::lock_guard lock(mutex_);
    adapters_.push_back(adapter);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = adapter;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

int AsyncWatcher::give_up_ports() {
  std::vector<Adapter*> adapters;
  {
    std::lock_guard lock(mutex_);
    adapters = adapters_;
  }
  const TimeNs now = now_ns();
  TimeNs next = kNever;
  for (Adapter* adapter : adapters) next = std::min(next, adapter->give_up_ports(now));
  return next == kNever ? -1 : static_cast<int>((next - now) / kMillisecond) + 1;
}

// Destroying a queue pair waits until its events are acknowledged; so nothing that its owner might hold meanwhile is
// held over the acknowledgement.
void AsyncWatcher::run() {
  for (;;) {
    epoll_event ready{};
    if (epoll_wait(epoll_fd_, &ready, 1, give_up_ports()) != 1) continue;
    auto* adapter = static_cast<Adapter*>(ready.data.ptr);
    ibv_async_event event{};
    while (ibv_get_async_event(adapter->context(), &event) == 0) {
      adapter->handle_event(event, now_ns());
      ibv_ack_async_event(&event);
    }
    // A device that has gone for good hangs up; level-triggered, that would never end.
    if ((ready.events & (EPOLLERR | EPOLLHUP)) != 0) {
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, adapter->context()->async_fd, nullptr);
    }
  }
}

}  // namespace rrpc::provider::verbs
