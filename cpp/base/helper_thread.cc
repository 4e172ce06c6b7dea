#include "base/helper_thread.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace rrpc {
namespace {

constexpr size_t kJobsMax = 64;

struct Helper {
  std::mutex mutex;
  std::deque<std::function<void()>> jobs;
  bool running = false;
};

std::atomic<Helper*> g_helper{nullptr};  // never destroyed: its thread may outlive static destruction

Helper& helper() {
  // A forked child has no such thread.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_helper.store(new Helper); });
  (void)registered;
  Helper* existing = g_helper.load();
  if (existing != nullptr) return *existing;
  auto made = std::make_unique<Helper>();
  if (g_helper.compare_exchange_strong(existing, made.get())) return *made.release();
  return *existing;
}

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
  Helper& here = helper();
  std::lock_guard lock(here.mutex);
  if (here.jobs.size() >= kJobsMax) return false;
  here.jobs.push_back(std::move(job));
  if (std::exchange(here.running, true)) return true;
  try {
    std::thread([&here] { run(here); }).detach();
    return true;
  } catch (const std::system_error&) {
    here.running = false;
    here.jobs.clear();
    return false;
  }
}

}  // namespace rrpc
