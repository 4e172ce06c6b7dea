#include "rpc/budget.h"

#include <algorithm>
#include <string>

#include "base/at_fork.h"
#include "base/memory_limit.h"
#include "endpoint/pool.h"

namespace rrpc::rpc {
namespace {

std::shared_ptr<Budgets>& g_process = *new std::shared_ptr<Budgets>;
std::mutex g_process_mutex;
std::atomic<uint32_t> g_processes{1};
int g_fork_generation = 0;  // written in a forked child before it has threads
const AtFork kProcessAtFork{[] {
  ++g_fork_generation;
  new (&g_process_mutex) std::mutex();
  new (&g_process) std::shared_ptr<Budgets>();
}};

}  // namespace

size_t Budget::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

bool Budget::fits(const Account& account, size_t bytes, size_t limit, size_t own_limit) const {
  if (account.held_ + bytes > own_limit) return false;
  if (held_ == 0) return true;  // however large: it shares with nobody
  return held_ + bytes <= limit && account.held_ + bytes <= limit - (held_ + bytes);
}

Budget::ToTell Budget::serve_waiting(size_t limit) {
  ToTell to_tell;
  std::erase_if(waiting_, [&](Account* account) {
    if (!fits(*account, account->wanted_, limit, account->limit_under(limit))) return false;
    account->hold_locked(account->wanted_);
    account->state_.store(Account::State::kGranted, std::memory_order_release);
    if (account->on_granted_) to_tell.push_back(account->on_granted_);
    return true;
  });
  return to_tell;
}

Budgets::Budgets(std::function<size_t()> landing_limit, const std::function<size_t()>& memory_bytes)
    : landing(std::move(landing_limit)),
      exposed([memory_bytes] { return memory_bytes() / 2; }),
      queued([memory_bytes] { return memory_bytes() / 16; }) {}

Budgets::Budgets(size_t landing_limit, size_t exposed_limit, size_t queued_limit)
    : landing([landing_limit] { return landing_limit; }),
      exposed([exposed_limit] { return exposed_limit; }),
      queued([queued_limit] { return queued_limit; }) {}

std::shared_ptr<Budgets> Budgets::process() {
  const std::lock_guard lock(g_process_mutex);
  if (g_process == nullptr)
    g_process = std::make_shared<Budgets>([] { return endpoint::Pool::process().limit_bytes(); },
                                          [all = memory_limit_bytes()] { return all / g_processes; });
  return g_process;
}

void Budgets::set_processes(uint32_t count) { g_processes = std::max(count, 1u); }

Account::Account(std::shared_ptr<Budgets> budgets, Budget Budgets::* budget, size_t own_limit)
    : budgets_(std::move(budgets)),
      budget_((*budgets_).*budget),
      own_limit_(own_limit),
      fork_generation_(g_fork_generation) {}

Account::~Account() { stop_waiting(); }

bool Account::of_parent() const { return fork_generation_ != g_fork_generation; }

size_t Account::limit_under(size_t budget_limit) const {
  return own_limit_ == 0 ? budget_limit / 2 : std::min(own_limit_, budget_limit);
}

size_t Account::held() const {
  const std::lock_guard lock(budget_.mutex_);
  return held_;
}

void Account::hold_locked(size_t bytes) {
  held_ += bytes;
  budget_.held_ += bytes;
}

bool Account::take(size_t bytes) {
  const size_t limit = budget_.limit();
  const std::lock_guard lock(budget_.mutex_);
  if (!budget_.fits(*this, bytes, limit, limit_under(limit))) return false;
  hold_locked(bytes);
  return true;
}

void Account::give_back(size_t bytes) {
  if (of_parent()) return;
  const size_t limit = budget_.limit();
  Budget::ToTell to_tell;
  {
    const std::lock_guard lock(budget_.mutex_);
    held_ -= bytes;
    budget_.held_ -= bytes;
    if (!budget_.waiting_.empty()) to_tell = budget_.serve_waiting(limit);
  }
  for (const auto& tell : to_tell) tell();
}

bool Account::take_or_wait(size_t bytes) {
  if (state_.load(std::memory_order_acquire) != State::kIdle) {
    {
      const std::lock_guard lock(budget_.mutex_);
      if (state_ == State::kGranted && wanted_ == bytes) {
        state_ = State::kIdle;
        return true;
      }
    }
    stop_waiting();
  }
  const size_t limit = budget_.limit();
  const std::lock_guard lock(budget_.mutex_);
  if (budget_.fits(*this, bytes, limit, limit_under(limit))) {
    hold_locked(bytes);
    return true;
  }
  wanted_ = bytes;
  state_ = State::kWaiting;
  budget_.waiting_.push_back(this);
  return false;
}

void Account::stop_waiting() {
  if (of_parent() || state_.load(std::memory_order_acquire) == State::kIdle) return;
  bool granted = false;
  {
    const std::lock_guard lock(budget_.mutex_);
    granted = state_ == State::kGranted;
    state_ = State::kIdle;
    std::erase(budget_.waiting_, this);
  }
  if (granted) give_back(wanted_);
}

void Account::set_on_granted(std::function<void()> on_granted) {
  const std::lock_guard lock(budget_.mutex_);
  on_granted_.swap(on_granted);
}

Status exposed_too_much(const Account& exposed, const char* what, size_t bytes) {
  const std::string text = std::string("exposed_bytes_max: ") + what + " of " + std::to_string(bytes) + " bytes";
  if (exposed.held() + bytes > exposed.limit())
    return resource_exhausted(text + " would pass the limit of " + std::to_string(exposed.limit()) +
                              " bytes exposed to one client (--exposed-bytes-max), with " +
                              std::to_string(exposed.held()) + " that it hasn't fetched yet");
  return resource_exhausted(text + " have no room beside what all clients haven't fetched yet; the limit for all is " +
                            std::to_string(exposed.budget_limit()) +
                            " bytes, half of this process's memory; try again later");
}

bool CountedBytes::reserve(size_t bytes) {
  const size_t steps = (bytes - kUncounted + kStep - 1) / kStep * kStep;
  if (!steps_.grow(account_, steps)) return false;
  reserved_ = kUncounted + steps_.bytes();
  return true;
}

}  // namespace rrpc::rpc
