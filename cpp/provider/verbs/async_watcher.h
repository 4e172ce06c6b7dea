// The thread that hears of what happens to adapters by themselves: a port that goes down, a device that fails.
#pragma once

#include <mutex>
#include <vector>

namespace rrpc::provider::verbs {

class Adapter;

class AsyncWatcher {
 public:
  static AsyncWatcher& process();  // never destroyed; a forked child has its own
  // From now until the process ends.
  void watch(Adapter* adapter);

 private:
  AsyncWatcher();
  [[noreturn]] void run();
  // Gives after how many milliseconds again; below 0: when something happens.
  int give_up_ports();

  int epoll_fd_ = -1;
  std::mutex mutex_;
  std::vector<Adapter*> adapters_;
};

}  // namespace rrpc::provider::verbs
