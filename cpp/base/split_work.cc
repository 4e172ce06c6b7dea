#include "base/split_work.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/detached_thread.h"
#include "base/helper_thread.h"
#include "base/of_process.h"

namespace rrpc {
namespace {

constexpr TimeNs kAwake = 100 * kMicrosecond;  // without work
constexpr int kSpins = 4096;                   // before a caller yields to a helper that isn't running
// A helper that was waited for longer than this had lost its core to others. It is left alone for so many times as long
// then, so that little is lost by waiting for it.
constexpr TimeNs kLate = 150 * kMicrosecond;
constexpr TimeNs kRest = 20;

// One helper thread and the work it is offered. The caller that holds `caller` writes the job and offers it; the
// helper answers by taking the offer, and then draws pieces as the caller does.
class Helper {
 public:
  void split(size_t count, Piece piece, void* context) {
    std::unique_lock lock(caller_, std::try_to_lock);
    if (!lock.owns_lock() || !offer(count, piece, context)) {
      for (size_t index = 0; index < count; ++index) piece(context, index);
      return;
    }
    draw();
    withdraw();
  }

 private:
  enum Offer : uint32_t { kNone, kOffered, kTaken };

  bool offer(size_t count, Piece piece, void* context) {
    if (working_behind()) return false;  // that core is in use
    if (!started_ && !start()) return false;
    if (rest_until_ > 0 && now_ns() < rest_until_) return false;
    piece_ = piece;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    offer_.store(kOffered, std::memory_order_seq_cst);
    if (!awake_.load(std::memory_order_seq_cst)) offer_.notify_one();
    return true;
  }

  void draw() {
    for (size_t index = next_.fetch_add(1, std::memory_order_relaxed); index < count_;
         index = next_.fetch_add(1, std::memory_order_relaxed))
      piece_(context_, index);
  }

  // Nobody touches the job after this.
  void withdraw() {
    uint32_t offered = kOffered;
    if (offer_.compare_exchange_strong(offered, kNone, std::memory_order_acquire)) return;
    const TimeNs start = now_ns();
    for (int spins = 0; offer_.load(std::memory_order_acquire) == kTaken; ++spins)
      spins < kSpins ? cpu_relax() : static_cast<void>(sched_yield());
    const TimeNs end = now_ns();
    rest_until_ = end - start < kLate ? 0 : end + kRest * (end - start);
  }

  void run() {
    for (;;) {
      awake_.store(true, std::memory_order_seq_cst);
      const TimeNs until = now_ns() + kAwake;
      bool worked = false;
      while (!worked && now_ns() < until) {
        worked = take_part();
        cpu_relax();
      }
      if (worked) continue;
      awake_.store(false, std::memory_order_seq_cst);
      offer_.wait(kNone, std::memory_order_seq_cst);
    }
  }

  bool take_part() {
    uint32_t offered = kOffered;
    if (!offer_.compare_exchange_strong(offered, kTaken, std::memory_order_acquire)) return false;
    draw();
    offer_.store(kNone, std::memory_order_release);
    return true;
  }

  // False: one core only, or no thread is to be had.
  bool start() {
    if (tried_) return false;
    tried_ = true;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return false;
    return started_ = start_detached([this] { run(); });
  }

  std::mutex caller_;
  bool started_ = false;
  bool tried_ = false;
  TimeNs rest_until_ = 0;
  Piece piece_ = nullptr;
  void* context_ = nullptr;
  size_t count_ = 0;

  std::atomic<size_t> next_{0};
  std::atomic<uint32_t> offer_{kNone};
  std::atomic<bool> awake_{false};
};

}  // namespace

void split_work(size_t count, Piece piece, void* context) { of_process<Helper>().split(count, piece, context); }

}  // namespace rrpc
