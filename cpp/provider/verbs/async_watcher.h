// The thread that hears of what happens to adapters by themselves: a port that goes down, a device that fails.
#pragma once

namespace rrpc::provider::verbs {

class Adapter;

class AsyncWatcher {
 public:
  static AsyncWatcher& process();  // never destroyed; a forked child has its own
  // From now until the process ends.
  void watch(Adapter* adapter);

 private:
  AsyncWatcher();
  [[noreturn]] void run() const;

  int epoll_fd_ = -1;
};

}  // namespace rrpc::provider::verbs
