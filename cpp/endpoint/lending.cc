#include "endpoint/lending.h"

#include <algorithm>
#include <unordered_map>

#include "base/of_process.h"
#include "endpoint/counters.h"
#include "endpoint/pool.h"

namespace rrpc::endpoint {
namespace {

// Between two looks at all that is lent.
constexpr TimeNs kTendInterval = 50 * kMillisecond;

constexpr size_t kRefusalsPerCollect = 64;

// Adds where the sum stays within the limit.
bool add_within(std::atomic<size_t>& sum, size_t bytes, size_t limit) {
  size_t now = sum.load(std::memory_order_relaxed);
  do {
    if (now > limit || bytes > limit - now) return false;
  } while (!sum.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  return true;
}

}  // namespace

// Here, where a charge is known.
Exposure::Exposure() = default;
Exposure::Exposure(Exposure&&) noexcept = default;
Exposure& Exposure::operator=(Exposure&&) noexcept = default;
Exposure::~Exposure() = default;

Lending& Lending::process() { return of_process<Lending>(); }

size_t Lending::limit_bytes() { return Pool::process().limit_bytes() / 2; }

std::unique_ptr<LendCharge> Lending::charge(size_t bytes, const std::shared_ptr<LentBytes>& connection) {
  collect_some();
  if (!add(bytes, *connection)) {
    // Seldom, since it looks at all that is lent: a peer at its limit may send for more as often as it likes.
    if (refusals_.fetch_add(1, std::memory_order_relaxed) % kRefusalsPerCollect == 0) collect();
    if (!add(bytes, *connection)) return count(counters().lendings_over_limit), nullptr;
  }
  count(counters().lent_bytes, static_cast<int64_t>(bytes));
  return std::make_unique<LendCharge>(*this, connection, bytes);
}

bool Lending::add(size_t bytes, LentBytes& connection) {
  if (!add_within(charge_count_, 1, kRangesMax)) return false;
  if (add_within(connection.used, bytes, connection.limit_bytes)) {
    if (add_within(lent_bytes_, bytes, limit_bytes())) return true;
    connection.used.fetch_sub(bytes, std::memory_order_relaxed);
  }
  charge_count_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

LendCharge::~LendCharge() {
  connection_->used.fetch_sub(bytes_, std::memory_order_relaxed);
  lending_.lent_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
  lending_.charge_count_.fetch_sub(1, std::memory_order_relaxed);
  count(counters().lent_bytes, -static_cast<int64_t>(bytes_));
}

// The registration goes at once, so that nothing here depends on a device: what holds the memory stays.
void Lending::keep(Exposure exposure, std::unique_ptr<provider::Loan> loan) {
  exposure.region = {};
  {
    std::lock_guard lock(mutex_);
    kept_.push_back({std::move(exposure), std::move(loan)});
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
  }
  count(counters().ranges_kept);
}

// What goes is destroyed without the mutex: that may run code of others.
void Lending::collect_some() {
  constexpr size_t kLooks = 16;
  if (kept_count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Kept> over;
  {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // another thread is at it
    for (size_t looks = std::min(kLooks, kept_.size()); looks > 0 && !kept_.empty(); --looks) {
      if (next_look_ >= kept_.size()) next_look_ = 0;
      Kept& kept = kept_[next_look_];
      if (!kept.loan->returned()) {
        ++next_look_;
        continue;
      }
      std::swap(kept, kept_.back());
      over.push_back(std::move(kept_.back()));
      kept_.pop_back();
    }
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
  }
}

void Lending::collect() {
  if (kept_count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Kept> over;
  std::unordered_map<const void*, bool> ended;  // by process
  {
    std::lock_guard lock(mutex_);
    const auto first = std::partition(kept_.begin(), kept_.end(), [&ended](const Kept& kept) {
      if (kept.loan->returned()) return false;
      const auto [process, is_new] = ended.try_emplace(kept.loan->borrower(), false);
      if (is_new) process->second = kept.loan->abandoned();
      return !process->second;
    });
    over.assign(std::make_move_iterator(first), std::make_move_iterator(kept_.end()));
    kept_.erase(first, kept_.end());
    kept_count_.store(kept_.size(), std::memory_order_relaxed);
  }
}

// From the timers of a process with connections.
TimeNs Lending::tend(TimeNs now) {
  if (kept_count_.load(std::memory_order_relaxed) == 0) return kNever;
  TimeNs due = next_tend_.load(std::memory_order_relaxed);
  if (now >= due) {
    next_tend_.store(due = now + kTendInterval, std::memory_order_relaxed);
    collect();
  }
  return kept_count_.load(std::memory_order_relaxed) == 0 ? kNever : due;
}

}  // namespace rrpc::endpoint
