#include "driver/loop_queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "driver/devices.h"

namespace rrpc::driver {
namespace {

// A loop that comes back within kTurn does nothing else, so that it may poll for kSlice without being missed.
constexpr TimeNs kTurn = 12 * kMicrosecond;
constexpr TimeNs kSlice = 8 * kMicrosecond;
// A peer that fetches is silent meanwhile. A loop that falls asleep takes two wake-ups, so it stays up for so many.
constexpr size_t kFetchedAwakeMax = 2 << 20;
constexpr size_t kFetchedPerNs = 4;

}  // namespace

void LoopCall::end() { queue_->push(shared_from_this()); }

LoopQueue::LoopQueue() : fork_generation_(fork_generation()), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LoopQueue::await(LoopItem& item, const ConnectionRef& connection, std::shared_ptr<Engine> engine,
                      size_t fetched_bytes) {
  item.from_ = connection.get();
  Watched& watched = watch(connection, std::move(engine));
  ++watched.awaited;
  ++awaited_;
  if (fetched_bytes <= kFetchedAwakeMax && connection->options().spin_ns() > 0)
    watched.heard(now_ns() + static_cast<TimeNs>(fetched_bytes / kFetchedPerNs));
}

void LoopQueue::follow(const ConnectionRef& connection, std::shared_ptr<Engine> engine) {
  Watched& watched = watch(connection, std::move(engine));
  watched.follow_until = deadline_after(watched.last_news, connection->options().spin_ns());
}

LoopQueue::Watched& LoopQueue::watch(const ConnectionRef& connection, std::shared_ptr<Engine> engine) {
  Watched& watched = watched_[connection.get()];
  if (watched.connection == nullptr) {
    watched.connection = connection;
    watched.engine = std::move(engine);
  }
  watched.heard(now_ns());
  if (std::exchange(resting_, false)) {  // it will poll: nobody need wake it
    std::lock_guard lock(mutex_);
    asleep_ = false;
  }
  if (!std::exchange(watched.active, true)) active_.push_back(&watched);
  return watched;
}

bool LoopQueue::poll(std::vector<LoopItemRef>& items, bool patient) {
  TimeNs now = now_ns();
  const TimeNs slice_end = patient && now - polled_until_ < kTurn ? now + kSlice : now;
  while (true) {
    poll_active(now);
    if (active_.empty() || has_items_.load(std::memory_order_relaxed)) break;
    if (now >= slice_end) break;
    spinner_.pause();
    now = now_ns();
  }
  const bool awake = take(items, active_.empty());
  resting_ = !awake;
  if (!items.empty()) spinner_.found_something();
  settle_accounts(items);
  polled_until_ = now_ns();
  return awake;
}

void LoopQueue::poll_active(TimeNs now) {
  for (size_t i = 0; i < active_.size();) {
    if (poll_one(*active_[i], now)) {
      ++i;
      continue;
    }
    Watched& left = *active_[i];
    active_[i] = active_.back();
    active_.pop_back();
    left.active = false;
    left.connection->loop_polled_at.store(0, std::memory_order_relaxed);
    if (left.awaited == 0) watched_.erase(left.connection.get());
  }
}

// False where the loop need not poll it for now.
bool LoopQueue::poll_one(Watched& watched, TimeNs now) {
  const ConnectionRef& connection = watched.connection;
  {
    std::unique_lock lock(connection->mutex, std::try_to_lock);
    if (!lock) return true;
    connection->loop_polled_at.store(now, std::memory_order_relaxed);
    if (connection->session().progress(now) > 0) {
      watched.heard(now);
      connection->last_active.store(now, std::memory_order_relaxed);
      watched.engine->settle(connection, now);
      return !connection->session().failed();
    }
    if (connection->session().failed()) return false;
  }
  if (watched.awaited == 0 && now >= watched.follow_until) return !watched.engine->left_by_loop(connection, now);
  const TimeNs spin = connection->options().spin_ns();
  if (now < deadline_after(watched.last_news, spin) && (spin == kNever || !Spinner::crowded(now))) return true;
  return !watched.engine->rest(connection, weak_from_this(), now);
}

// False, where there is nothing and the loop may sleep: whoever pushes from now on wakes it.
bool LoopQueue::take(std::vector<LoopItemRef>& items, bool may_sleep) {
  if (!may_sleep && !has_items_.load(std::memory_order_relaxed)) return true;
  std::vector<Stirred> stirred;
  bool told = false;
  {
    std::lock_guard lock(mutex_);
    items.swap(items_);
    stirred.swap(stirred_);
    has_items_.store(false, std::memory_order_relaxed);
    told = std::exchange(told_, false);
    asleep_ = may_sleep = may_sleep && items.empty() && stirred.empty();
  }
  eventfd_t count = 0;
  if (told) (void)eventfd_read(wake_fd_.get(), &count);
  for (Stirred& each : stirred) follow(each.connection, std::move(each.engine));
  return !may_sleep;
}

// What has come isn't awaited any more; the connection it came from may have more.
void LoopQueue::settle_accounts(const std::vector<LoopItemRef>& items) {
  for (const LoopItemRef& item : items) {
    Connection* const from = std::exchange(item->from_, nullptr);
    if (from == nullptr) continue;
    --awaited_;
    const auto found = watched_.find(from);
    if (found == watched_.end()) continue;
    Watched& watched = found->second;
    if (--watched.awaited == 0 && !watched.active)
      watched_.erase(found);
    else if (!watched.active)
      (void)watch(watched.connection, nullptr);
  }
}

template <typename Add>
void LoopQueue::tell(Add add) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    add();
    has_items_.store(true, std::memory_order_relaxed);
    if (!std::exchange(asleep_, false)) return;
    told_ = true;
    // Under the mutex: whoever takes `told_` finds it written, and leaves nothing that would wake the loop for ever.
    (void)eventfd_write(wake_fd_.get(), 1);
  }
}

void LoopQueue::push(LoopItemRef item) {
  tell([&] { items_.push_back(std::move(item)); });
}

void LoopQueue::stir(const ConnectionRef& connection, std::shared_ptr<Engine> engine) {
  tell([&] { stirred_.push_back({connection, std::move(engine)}); });
}

void LoopQueue::close() {
  std::vector<LoopItemRef> dropped;
  std::vector<Stirred> stirred;
  std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(items_);
  stirred.swap(stirred_);
}

}  // namespace rrpc::driver
