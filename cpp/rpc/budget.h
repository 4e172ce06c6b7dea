// Bytes that the connections of a process share. A connection may hold as much as it leaves free (the dynamic threshold
// of Choudhury and Hahne with alpha 1): n connections that take all they can hold n/(n+1) of a budget, and one more
// finds room. Thread-safe. No I/O, no clock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rrpc::rpc {

class Account;

class Budget {
 public:
  // The limit is asked for each time: it may change.
  explicit Budget(std::function<size_t()> limit) : limit_(std::move(limit)) {}
  size_t limit() const { return limit_(); }
  size_t held() const;

 private:
  friend class Account;
  using ToTell = std::vector<std::function<void()>>;
  bool fits(const Account& account, size_t bytes, size_t limit, size_t own_limit) const;
  // Grants what fits to those that wait, in turn. Run the result without the mutex.
  ToTell serve_waiting(size_t limit);

  const std::function<size_t()> limit_;
  mutable std::mutex mutex_;
  size_t held_ = 0;
  std::deque<Account*> waiting_;
};

// The budgets of a process, or of a test.
struct Budgets {
  // Results need not be pool memory, so what is exposed may be half of the memory, and what is queued a sixteenth.
  Budgets(std::function<size_t()> landing_limit, const std::function<size_t()>& memory_bytes);
  Budgets(size_t landing_limit, size_t exposed_limit, size_t queued_limit);

  Budget landing;  // memory that fetched arguments and items land in, until their call is answered or the item is taken
  Budget exposed;  // results and items that wait for their readers
  Budget queued;   // messages that wait for a worker, for landing memory or for credits

  // Of the process, landing within its pool. A forked child gets new ones.
  static std::shared_ptr<Budgets> process();
  // So many processes share the memory, apart from the pool's.
  static void set_processes(uint32_t count);
};

// What one connection holds of a budget.
class Account {
 public:
  // The connection's own limit; 0: what the budget's share allows.
  Account(std::shared_ptr<Budgets> budgets, Budget Budgets::* budget, size_t own_limit);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // The most that one request can ever get.
  size_t limit() const { return limit_under(budget_.limit()); }
  size_t budget_limit() const { return budget_.limit(); }
  size_t budget_held() const { return budget_.held(); }
  size_t held() const;

  bool take(size_t bytes);
  void give_back(size_t bytes);
  // take(), at once or later. False: when the bytes are this account's `on_granted` runs, on any thread; then the same
  // request gives true.
  bool take_or_wait(size_t bytes);
  void stop_waiting();
  bool waiting() const { return state_.load(std::memory_order_acquire) == State::kWaiting; }
  void set_on_granted(std::function<void()> on_granted);

 private:
  friend class Budget;
  enum class State : uint8_t { kIdle, kWaiting, kGranted };

  size_t limit_under(size_t budget_limit) const;
  void hold_locked(size_t bytes);
  bool of_parent() const;

  const std::shared_ptr<Budgets> budgets_;
  Budget& budget_;
  const size_t own_limit_;
  const int fork_generation_;
  // Guarded by the budget's mutex; state_ is written under it.
  size_t held_ = 0;
  size_t wanted_ = 0;
  std::atomic<State> state_{State::kIdle};
  std::function<void()> on_granted_;
};

// Bytes taken from an account; gives them back. May outlive the connection.
class Charge {
 public:
  Charge() = default;
  Charge(std::shared_ptr<Account> account, size_t bytes) : account_(std::move(account)), bytes_(bytes) {}
  Charge(Charge&& other) noexcept : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (bytes_ > 0) account_->give_back(bytes_);
  }

  size_t bytes() const { return bytes_; }
  void end() {
    if (bytes_ > 0) *this = {};
  }
  // Makes it at least so many bytes of `account`. False: there is no room for more now, and it is as it was.
  bool grow(const std::shared_ptr<Account>& account, size_t bytes) {
    if (bytes <= bytes_) return true;
    if (!account->take(bytes - bytes_)) return false;
    account_ = account;
    bytes_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<Account> account_;
  size_t bytes_ = 0;
};

// Why `what` of so many bytes can't be shown to the peer.
Status exposed_too_much(const Account& exposed, const char* what, size_t bytes);

// Bytes of one connection that change with every message: counted here, taken from the account in steps. Of the
// connection's mutex.
class CountedBytes {
 public:
  explicit CountedBytes(std::shared_ptr<Account> account) : account_(std::move(account)) {}

  // False: no room.
  bool add(size_t bytes) {
    if (used_ + bytes > reserved_ && !reserve(used_ + bytes)) return false;
    used_ += bytes;
    return true;
  }
  // What has to wait, whatever the limit: an error in the place of what was refused.
  void add_anyway(size_t bytes) { used_ += bytes; }
  void remove(size_t bytes) {
    used_ -= bytes;
    if (reserved_ > kUncounted && used_ <= kUncounted) give_back();
  }
  size_t used() const { return used_; }
  size_t limit() const { return account_->limit(); }

 private:
  static constexpr size_t kUncounted = 64 << 10;  // of each connection, about what its ring takes
  static constexpr size_t kStep = 256 << 10;
  bool reserve(size_t bytes);
  void give_back() {
    steps_ = {};
    reserved_ = kUncounted;
  }

  std::shared_ptr<Account> account_;
  Charge steps_;
  size_t reserved_ = kUncounted;  // and the bytes of steps_
  size_t used_ = 0;
};

}  // namespace rrpc::rpc
