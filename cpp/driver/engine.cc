#include "driver/engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "driver/spinner.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kTick = kMillisecond;           // of the engine's thread while anything is hot
constexpr TimeNs kTickMax = 10 * kMillisecond;   // when ticks find nothing for a while
constexpr TimeNs kLinger = 3 * kMillisecond;     // quiet for this long: hot becomes armed
constexpr TimeNs kEventCheck = 50 * kMicrosecond;  // a spinning worker looks at epoll this often
constexpr TimeNs kTimerStep = 5 * kMillisecond;
constexpr TimeNs kWorkerNap = 100 * kMillisecond;
constexpr uint64_t kWakeKey = 0;
constexpr uint64_t kListenerBit = 1ULL << 63;

std::atomic<bool>* g_deferred_flag = nullptr;
std::function<void()> g_deferred_run;

void atomic_min(std::atomic<TimeNs>& target, TimeNs value) {
  TimeNs current = target.load();
  while (value < current && !target.compare_exchange_weak(current, value)) {
  }
}

int timeout_ms_until(TimeNs deadline) {
  if (deadline == kNever) return -1;
  const TimeNs left = deadline - now_ns();
  return left <= 0 ? 0 : static_cast<int>(std::min<TimeNs>((left + kMillisecond - 1) / kMillisecond, 60'000));
}

}  // namespace

Engine::Engine(Hooks hooks)
    : hooks_(std::move(hooks)), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  RRPC_CHECK(epoll_fd_ && wake_fd_, "no file descriptors left for a polling engine; raise 'ulimit -n'");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeKey;
  epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, wake_fd_.get(), &event);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    std::lock_guard lock(worker_mutex_);
    stopping_ = true;
    worker_condition_.notify_all();
    driver_condition_.notify_all();
  }
  (void)eventfd_write(wake_fd_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Engine::set_deferred_hook(std::atomic<bool>* flag, std::function<void()> run) {
  g_deferred_run = std::move(run);
  g_deferred_flag = flag;
}

bool Engine::deferred_waits() const { return g_deferred_flag != nullptr && g_deferred_flag->load(); }

void Engine::kick() {
  if (asleep_until_.load() != 0) (void)eventfd_write(wake_fd_.get(), 1);
}

// --- connections and listeners ---------------------------------------------------------------------

void Engine::add(const ConnectionRef& connection) {
  {
    std::lock_guard lock(list_mutex_);
    connections_.emplace(connection->id(), connection);
    new_hot_.push_back(connection);
    has_new_hot_ = true;
  }
  const TimeNs now = now_ns();
  note_deadline(std::min(connection->handshake_deadline, deadline_after(now, connection->options().session.keepalive_interval)));
  kick();
}

void Engine::remove(const ConnectionRef& connection) {
  {
    std::lock_guard lock(connection->mutex);
    disable_epoll(*connection);
    connection->attendance = Attendance::kLeader;  // whoever still lists it drops it
  }
  size_t erased = 0;
  {
    std::lock_guard lock(list_mutex_);
    erased = connections_.erase(connection->id());
  }
  if (erased > 0 && hooks_.on_removed) hooks_.on_removed(connection);
}

void Engine::add_listener(ListenerEntry entry) {
  const uint64_t key = next_connection_id() | kListenerBit;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  const int fd = entry.listener->wait_fd();
  std::lock_guard lock(list_mutex_);
  listeners_.emplace(key, std::make_shared<ListenerEntry>(std::move(entry)));
  RRPC_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0, "a listener can't be watched");
}

void Engine::close_listeners() {
  std::lock_guard lock(list_mutex_);
  listeners_.clear();  // one that accept_all() is using goes when that is done
}

std::vector<ConnectionRef> Engine::connections() const {
  std::lock_guard lock(list_mutex_);
  std::vector<ConnectionRef> all;
  all.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) all.push_back(connection);
  return all;
}

size_t Engine::connection_count() const {
  std::lock_guard lock(list_mutex_);
  return connections_.size();
}

void Engine::note_deadline(TimeNs deadline) {
  atomic_min(next_timer_, deadline);
  if (asleep_until_.load() > deadline) kick();
}

// --- epoll -----------------------------------------------------------------------------------------

void Engine::enable_epoll(Connection& connection) {
  std::vector<provider::WaitHandle> handles;
  connection.session().endpoint().append_wait_handles(handles);
  const auto& old = connection.epoll_handles;
  const bool same = std::equal(handles.begin(), handles.end(), old.begin(), old.end(),
                               [](const auto& a, const auto& b) { return a.fd == b.fd; });
  if (!same) {
    for (const provider::WaitHandle& handle : old) epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, handle.fd, nullptr);
  }
  for (const provider::WaitHandle& handle : handles) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT | (handle.want_write ? uint32_t{EPOLLOUT} : 0u);
    event.data.u64 = connection.id();
    epoll_ctl(epoll_fd_.get(), same ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, handle.fd, &event);
  }
  connection.epoll_handles = std::move(handles);
  connection.in_epoll = true;
}

void Engine::disable_epoll(Connection& connection) {
  if (!connection.in_epoll) return;
  for (const provider::WaitHandle& handle : connection.epoll_handles) {
    epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, handle.fd, nullptr);
  }
  connection.epoll_handles.clear();
  connection.in_epoll = false;
}

void Engine::detach(Connection& connection) {
  disable_epoll(connection);
  connection.attendance = Attendance::kLeader;
}

void Engine::reattach(Connection& connection) {
  if (connection.session().failed()) return;  // the leader saw it off
  connection.attendance = Attendance::kArmed;
  enable_epoll(connection);
  connection.arm_until_quiet(now_ns());
}

void Engine::make_hot(uint64_t id) {
  ConnectionRef connection;
  {
    std::lock_guard lock(list_mutex_);
    const auto it = connections_.find(id);
    if (it == connections_.end()) return;
    connection = it->second;
  }
  std::lock_guard lock(connection->mutex);
  if (connection->attendance != Attendance::kArmed) return;
  connection->attendance = Attendance::kHot;
  connection->in_epoll = !connection->epoll_handles.empty();  // listed, though one-shot has disabled it
  connection->last_active = now_ns();
  hot_.push_back(std::move(connection));
}

void Engine::accept_all(uint64_t key) {
  std::shared_ptr<ListenerEntry> entry;
  {
    std::lock_guard lock(list_mutex_);
    const auto it = listeners_.find(key);
    if (it == listeners_.end()) return;
    entry = it->second;
  }
  while (ConnectionRef connection = hooks_.accept(*entry->device, *entry->listener, next_connection_id())) {
    add(connection);
  }
}

void Engine::wait_events(TimeNs deadline) {
  std::array<epoll_event, 64> events;
  int count = 0;
  if (deadline <= 0) {
    count = epoll_wait(epoll_fd_.get(), events.data(), events.size(), 0);
  } else {
    asleep_until_.store(deadline);
    // Announced; now whoever sets these flags kicks, so one last look is enough.
    const bool must_not_sleep = stopping_.load() || has_new_hot_.load() || next_timer_.load() < now_ns();
    count = epoll_wait(epoll_fd_.get(), events.data(), events.size(), must_not_sleep ? 0 : timeout_ms_until(deadline));
    asleep_until_.store(0);
  }
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[static_cast<size_t>(i)].data.u64;
    if (key == kWakeKey) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_fd_.get(), &value);
    } else if ((key & kListenerBit) != 0) {
      accept_all(key);
    } else {
      make_hot(key);
    }
  }
}

// --- polling ---------------------------------------------------------------------------------------

void Engine::adopt_new_hot() {
  if (!has_new_hot_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(list_mutex_);
  for (ConnectionRef& connection : new_hot_) hot_.push_back(std::move(connection));
  new_hot_.clear();
  has_new_hot_ = false;
}

bool Engine::poll_one(const ConnectionRef& connection, TimeNs now, size_t& handled) {
  if (connection->attendance.load() != Attendance::kHot) return false;
  std::unique_lock lock(connection->mutex, std::try_to_lock);
  if (!lock) return true;
  const size_t progress = connection->session().progress(now);
  handled += progress;
  if (progress > 0) connection->last_active = now;
  if (!connection->session().failed() || !connection->session().quiet()) return true;
  lock.unlock();
  remove(connection);
  return false;
}

size_t Engine::poll_hot(TimeNs now) {
  adopt_new_hot();
  size_t handled = 0;
  for (size_t i = 0; i < hot_.size();) {
    if (poll_one(hot_[i], now, handled)) {
      ++i;
    } else {
      hot_[i] = std::move(hot_.back());
      hot_.pop_back();
    }
  }
  return handled;
}

bool Engine::try_arm(const ConnectionRef& connection, TimeNs now) {
  std::unique_lock lock(connection->mutex, std::try_to_lock);
  if (!lock) return false;
  if (connection->attendance != Attendance::kHot) return true;
  if (connection->session().failed()) return false;
  connection->session().endpoint().arm();
  if (connection->session().progress(now) > 0) {
    connection->last_active = now;
    return false;
  }
  connection->attendance = Attendance::kArmed;
  enable_epoll(*connection);
  return true;
}

void Engine::arm_hot(TimeNs now, TimeNs idle_since) {
  for (size_t i = 0; i < hot_.size();) {
    if (hot_[i]->last_active <= idle_since && try_arm(hot_[i], now)) {
      hot_[i] = std::move(hot_.back());
      hot_.pop_back();
    } else {
      ++i;
    }
  }
}

void Engine::run_timers(TimeNs now) {
  if (now < next_timer_.load(std::memory_order_relaxed)) return;
  next_timer_.store(kNever);  // first: a deadline noted meanwhile is not lost
  TimeNs next = kNever;
  for (const ConnectionRef& connection : connections()) {
    std::unique_lock lock(connection->mutex, std::try_to_lock);
    if (!lock) {
      next = now;
      continue;
    }
    rpc::Session& session = connection->session();
    if (!session.ready() && now >= connection->handshake_deadline)
      session.close(deadline_exceeded("the handshake was not finished in time"));
    if (session.next_tick() <= now) {
      session.progress(now);
      session.tick(now);
    }
    if (session.failed() && connection->attendance == Attendance::kArmed) {
      disable_epoll(*connection);
      connection->attendance = Attendance::kHot;  // to be seen off
      hot_.push_back(connection);
    } else if (connection->attendance == Attendance::kArmed) {
      connection->arm_until_quiet(now);
    }
    next = std::min(next, session.next_tick());
    if (!session.ready() && !session.failed()) next = std::min(next, connection->handshake_deadline);
  }
  if (next != kNever) atomic_min(next_timer_, std::max(next, now + kTimerStep));
}

TimeNs Engine::wake_time(TimeNs deadline) const { return std::min(deadline, next_timer_.load()); }

// --- the engine's own thread -----------------------------------------------------------------------

void Engine::run() {
  TimeNs tick = kTick;
  while (!stopping_) {
    if (deferred_waits()) g_deferred_run();
    if (has_workers_.load(std::memory_order_relaxed)) {
      std::unique_lock lock(worker_mutex_);
      const auto must_tick = [this] { return !worker_asleep_.load() || stopping_.load(); };
      if (must_tick())
        driver_condition_.wait_for(lock, std::chrono::nanoseconds(tick), [this] { return stopping_.load(); });
      else
        driver_condition_.wait(lock, must_tick);
      lock.unlock();
      tick = tick_for_workers() ? kTick : std::min(tick * 2, kTickMax);
      continue;
    }
    std::lock_guard token(token_);
    const TimeNs now = now_ns();
    const size_t handled = poll_hot(now);
    run_timers(now);
    if (handled > 0) continue;
    arm_hot(now, now - kLinger);
    if (deferred_waits()) continue;
    wait_events(hot_.empty() ? wake_time(kNever) : now + kTick);
  }
}

// While workers are away in handlers. Gives whether there was anything to do.
bool Engine::tick_for_workers() {
  if (hooks_.work_waits()) wake_one_worker();
  std::unique_lock token(token_, std::try_to_lock);
  if (!token) return true;  // a worker is polling
  bool idle_worker = false;
  {
    std::lock_guard lock(worker_mutex_);
    idle_worker = workers_waiting_ > 0;
    if (idle_worker) token_offered_ = true;
  }
  if (idle_worker) {
    token.unlock();
    worker_condition_.notify_one();
    return true;
  }
  bool any = false;
  size_t handled = 0;
  do {
    const TimeNs now = now_ns();
    wait_events(0);
    handled = poll_hot(now);
    run_timers(now);
    any = any || handled > 0;
  } while (handled > 0 && !stopping_);
  if (hooks_.work_waits()) wake_one_worker();
  return any;
}

// --- workers ---------------------------------------------------------------------------------------

bool Engine::attend(TimeNs spin, TimeNs deadline, const std::atomic<bool>& interrupt) {
  has_workers_.store(true, std::memory_order_relaxed);
  std::unique_lock token(token_, std::try_to_lock);
  if (!token) return false;
  TimeNs now = now_ns();
  TimeNs spin_until = deadline_after(now, spin);
  TimeNs next_check = now + kEventCheck;
  bool slept = false;
  Spinner spinner;
  while (true) {
    const size_t handled = poll_hot(now);
    if (hooks_.work_waits() || stopping_.load(std::memory_order_relaxed) || interrupt.load(std::memory_order_relaxed)) break;
    if (handled > 0) {
      now = now_ns();
      spin_until = deadline_after(now, spin);
      spinner.found_something();
      continue;
    }
    if (!spinner.pause()) continue;
    now = now_ns();
    if (now >= deadline) break;
    if (now >= next_check) {
      wait_events(0);
      run_timers(now);
      next_check = now + kEventCheck;
    }
    if (now < spin_until) continue;
    arm_hot(now, kNever);
    if (!hot_.empty() || hooks_.work_waits() || interrupt.load()) continue;
    worker_asleep_ = slept = true;
    wait_events(wake_time(deadline));
    worker_asleep_ = false;
    now = now_ns();
    run_timers(now);
    // Awake for one connection's sake: look at it once, and spin only if there was something.
    spin_until = deadline_after(now, hot_.empty() ? 0 : spin);
  }
  token.unlock();
  if (slept) {
    std::lock_guard lock(worker_mutex_);
    driver_condition_.notify_all();  // it ticks from now on
  }
  return true;
}

void Engine::worker_waits(TimeNs deadline) {
  std::unique_lock lock(worker_mutex_);
  ++workers_waiting_;
  const TimeNs nap = std::min(kWorkerNap, std::max<TimeNs>(deadline - now_ns(), 0));
  worker_condition_.wait_for(lock, std::chrono::nanoseconds(nap),
                             [this] { return token_offered_ || stopping_.load() || hooks_.work_waits(); });
  token_offered_ = false;
  --workers_waiting_;
}

void Engine::offer_token() {
  std::lock_guard lock(worker_mutex_);
  if (workers_waiting_ == 0) return;
  token_offered_ = true;
  worker_condition_.notify_one();
}

void Engine::wake_one_worker() {
  std::lock_guard lock(worker_mutex_);
  if (workers_waiting_ > 0) worker_condition_.notify_one();
}

void Engine::wake_workers() {
  {
    std::lock_guard lock(worker_mutex_);
    worker_condition_.notify_all();
  }
  (void)eventfd_write(wake_fd_.get(), 1);
}

}  // namespace rrpc::driver
