#include "base/helper_thread.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/of_process.h"

namespace rrpc {
namespace {

constexpr size_t kJobsMax = 64;

struct Helper {
  std::mutex mutex;
  std::deque<std::function<void()>> jobs;
  std::atomic<bool> running{false};  // changed with the mutex held
};

void run(Helper& here) {
  for (;;) {
    std::function<void()> job;
    {
      std::lock_guard lock(here.mutex);
      here.running = !here.jobs.empty();
      if (!here.running) return;
      job = std::move(here.jobs.front());
      here.jobs.pop_front();
    }
    job();
  }
}

}  // namespace

bool run_behind(std::function<void()> job) {
  Helper& here = of_process<Helper>();
  std::lock_guard lock(here.mutex);
  if (here.jobs.size() >= kJobsMax) return false;
  here.jobs.push_back(std::move(job));
  if (here.running.exchange(true)) return true;
  try {
    std::thread([&here] { run(here); }).detach();
    return true;
  } catch (const std::system_error&) {
    here.running = false;
    here.jobs.clear();
    return false;
  }
}

bool working_behind() { return of_process<Helper>().running.load(std::memory_order_relaxed); }

}  // namespace rrpc
