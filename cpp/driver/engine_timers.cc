// When connections are looked at, by the thread with the polling token, and when the engine's own thread ticks.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/helper_thread.h"
#include "driver/engine.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kTimerStep = 5 * kMillisecond;

// Nearly always what it was set for is over: the call was answered long before its deadline.
bool is_due(Connection& connection, TimeNs now) {
  return now >= connection.session().next_tick() || connection.session().failed() ||
         (connection.half_open()
              ? now >= std::min(connection.handshake_deadline, connection.look_again_at)
              : now >= std::min({connection.retire_at, connection.close_at, connection.leave_at.load()}));
}

TimeNs next_deadline(Connection& connection) {
  const TimeNs of_session = connection.session().next_tick();
  if (connection.session().failed()) return of_session;
  if (connection.half_open()) return std::min({of_session, connection.handshake_deadline, connection.look_again_at});
  return std::min({of_session, connection.retire_at, connection.close_at, connection.leave_at.load()});
}

}  // namespace

ConnectionRef Engine::find(uint64_t id) const {
  std::lock_guard lock(list_mutex_);
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second;
}

void Engine::tend(const ConnectionRef& connection, TimeNs now) {
  rpc::Session& session = connection->session();
  if (connection->half_open() && !session.failed() && now >= connection->handshake_deadline)
    session.close(connection->awaits_user
                      ? deadline_exceeded("the server's database of users and groups doesn't say who the client is")
                      : Connection::unfinished_handshake());
  if (!connection->half_open() && !session.failed()) {
    if (now >= connection->retire_at) connection->retire(now, "max_connection_age: connect again");
    if (now >= connection->close_at)
      session.close(unavailable("max_connection_age_grace: the call took longer after its connection reached its age"));
    if (now >= connection->leave_at)
      session.close(unavailable("the client has come again by another way, and doesn't need this connection any more"));
  }
  if (session.next_tick() <= now || now >= std::exchange(connection->look_again_at, kNever)) {
    session.progress(now);
    session.tick(now);
  }
  settle(connection, now);
}

void Engine::run_timer(uint64_t id, TimeNs now) {
  const ConnectionRef connection = find(id);
  if (connection == nullptr) return;
  std::unique_lock lock(connection->mutex, std::try_to_lock);
  if (!lock) return timers_.set(connection->timer, now + kTimerStep);
  if (is_due(*connection, now)) tend(connection, now);
  if (connection->attendance != Attendance::kGone) timers_.set(connection->timer, next_deadline(*connection));
}

void Engine::progress_roused(TimeNs now) {
  std::vector<ConnectionRef> roused;
  {
    std::lock_guard lock(list_mutex_);
    roused.swap(roused_);
    has_roused_ = false;
  }
  for (const ConnectionRef& connection : roused) {
    std::lock_guard lock(connection->mutex);
    connection->session().progress(now);
    settle(connection, now);
    if (connection->attendance != Attendance::kGone) note_deadline(*connection, next_deadline(*connection));
  }
}

// Giving memory back takes milliseconds, which the helper thread has. Gives when to look again.
TimeNs Engine::tend_pool(TimeNs now) {
  endpoint::Pool& pool = endpoint::Pool::process();
  const TimeNs due = pool.next_tend();
  if (now < due) return due;
  const auto tend = [] { (void)endpoint::Pool::process().tend(now_ns()); };
  if (waiting_behind(Behind::kMemory) == 0 && !run_behind(Behind::kMemory, tend)) tend();
  return now + kTimerStep;
}

void Engine::run_timers(TimeNs now) {
  if (now < next_timer_.load(std::memory_order_relaxed)) return;
  next_timer_.store(kNever);  // first: a deadline noted meanwhile is not lost
  for (const uint64_t id : timers_.take_due(now)) run_timer(id, now);
  {
    std::lock_guard lock(list_mutex_);
    if (std::exchange(listeners_paused_, false)) {
      for (const auto& [key, entry] : listeners_) watch_listener(key, *entry, EPOLL_CTL_MOD);
    }
  }
  TimeNs next = timers_.next();
  endpoint::Pool& pool = endpoint::Pool::process();
  const TimeNs pool_next = tend_pool(now);
  next = std::min(next, endpoint::Lending::process().tend(now));
  if (connection_count() > 0 || pool.committed_bytes() > 0) next = std::min(next, pool_next);
  if (next != kNever) wake_for_timers_at(std::max(next, now + kTimerStep));
}

// --- the engine's thread of a server with workers ----------------------------------------------------

// While a worker sleeps in epoll. One that wakes sets the alarm, and stops it if it sleeps again in time, as it does
// after a request that is soon answered: this thread isn't woken then.
bool Engine::park_driver() {
  std::lock_guard lock(worker_mutex_);
  driver_parked_ = worker_asleep_.load() && !stopping_.load();
  if (driver_parked_) ticks_seldom_.store(false, std::memory_order_relaxed);
  return driver_parked_;
}

// By a worker, with the token, before and after it sleeps.
void Engine::let_driver_sleep() {
  worker_asleep_ = true;
  std::lock_guard lock(worker_mutex_);
  if (!driver_parked_) return;
  deferred_waits() ? driver_alarm_.ring() : driver_alarm_.stop();
}

void Engine::have_driver_tick() {
  worker_asleep_ = false;
  std::lock_guard lock(worker_mutex_);
  if (driver_parked_) driver_alarm_.set(deferred_waits() ? 0 : kTick);
}

}  // namespace rrpc::driver
