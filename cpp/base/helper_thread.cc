#include "base/helper_thread.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "base/detached_thread.h"
#include "base/of_process.h"

namespace rrpc {
namespace {

constexpr size_t kMemoryJobsMax = 64;
constexpr std::chrono::seconds kIdleMax{1};  // a thread that starts costs whoever gives the job some 20 µs

thread_local const void* t_own = nullptr;  // the helper whose thread this is

class Helper {
 public:
  bool give(std::function<void()> job, size_t waiting_max) {
    std::unique_lock lock(mutex_);
    if (jobs_.size() >= waiting_max) return false;
    try {
      jobs_.push_back(std::move(job));
    } catch (const std::bad_alloc&) {
      return false;
    }
    ++given_;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    if (running_) {
      lock.unlock();
      news_.notify_one();
      return true;
    }
    running_ = start_detached([this] { run(); });
    if (running_) return true;
    const std::function<void()> refused = std::move(jobs_.back());
    jobs_.pop_back();
    finish_one();
    lock.unlock();  // what the job holds may give work itself when it goes
    return false;
  }

  bool is_this_thread() const { return t_own == this; }

  size_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

  void wait(size_t left, TimeNs deadline) {
    if (is_this_thread() || waiting() <= left) return;
    std::unique_lock lock(mutex_);
    const uint64_t until = given_ - std::min<uint64_t>(given_, left);
    const auto done = [&] { return done_ >= until; };
    if (deadline == kNever) return finished_.wait(lock, done);
    (void)finished_.wait_for(lock, std::chrono::nanoseconds(std::max<TimeNs>(deadline - now_ns(), 0)), done);
  }

 private:
  void run() {
    t_own = this;
    std::unique_lock lock(mutex_);
    while (news_.wait_for(lock, kIdleMax, [this] { return !jobs_.empty(); })) {
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it holds goes here, too
      lock.lock();
      finish_one();
    }
    running_ = false;
  }

  // With the mutex.
  void finish_one() {
    ++done_;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    finished_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::condition_variable finished_;
  std::deque<std::function<void()>> jobs_;
  uint64_t given_ = 0;
  uint64_t done_ = 0;
  bool running_ = false;
  std::atomic<size_t> waiting_{0};  // changed with the mutex held
};

struct Helpers {
  std::array<Helper, 2> of_kind;
};

Helper& helper(Behind kind) { return of_process<Helpers>().of_kind.at(static_cast<size_t>(kind)); }

}  // namespace

bool run_behind(Behind kind, std::function<void()> job) {
  return helper(kind).give(std::move(job), kind == Behind::kMemory ? kMemoryJobsMax : SIZE_MAX);
}

bool working_behind() { return waiting_behind(Behind::kMemory) + waiting_behind(Behind::kEnds) > 0; }

bool runs_behind(Behind kind) { return helper(kind).is_this_thread(); }

size_t waiting_behind(Behind kind) { return helper(kind).waiting(); }

void wait_behind(Behind kind, size_t left, TimeNs deadline) { helper(kind).wait(left, deadline); }

}  // namespace rrpc
