#include "driver/engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "driver/spinner.h"
#include "endpoint/pool.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kTickMax = 10 * kMillisecond;  // when ticks find nothing for a while, or others poll
constexpr TimeNs kLinger = 3 * kMillisecond;    // quiet for this long: hot becomes armed
constexpr TimeNs kWorkerNap = 200 * kMillisecond;
constexpr TimeNs kPollBetween = 100 * kMicrosecond;  // busy workers poll as often as this,
constexpr TimeNs kWorkPerPoll = 3;                   // and work for so many times what the last poll took

std::atomic<bool>* g_deferred_flag = nullptr;
std::function<void()> g_deferred_run;

std::chrono::nanoseconds nap(TimeNs deadline, TimeNs longest) {
  return std::chrono::nanoseconds(std::min(longest, std::max<TimeNs>(deadline - now_ns(), 0)));
}

}  // namespace

thread_local const Engine* Engine::polling_ = nullptr;
thread_local const Engine* Engine::own_ = nullptr;

Engine::Engine() : Engine(Hooks()) {}

Status Engine::start(const std::optional<NumaNode>& node) {
  std::lock_guard lock(start_mutex_);
  RRPC_RETURN_IF_ERROR(start_thread_locked());
  if (!node || !thread_.joinable()) return {};
  RRPC_RETURN_IF_ERROR(endpoint::Pool::process().prefer_node(node->number));
  return run_on(thread_.native_handle(), node->cpus);
}

Status Engine::start_thread_locked() {
  if (thread_.joinable() || stopping_) return {};
  if (!epoll_fd_) epoll_fd_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_fd_) wake_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_fd_ || !wake_fd_ || !driver_alarm_.open())
    return resource_exhausted(
        "no file descriptors are left to poll connections with (RLIMIT_NOFILE); raise 'ulimit -n'");
  epoll_event event{};  // its key is 0, which no connection has
  event.events = EPOLLIN;
  epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, wake_fd_.get(), &event);
  {
    std::lock_guard workers(worker_mutex_);
    started_ = true;
    worker_condition_.notify_all();
  }
  try {
    thread_ = std::thread([this] { run_for_good(); });
  } catch (const std::system_error& error) {
    return resource_exhausted("no thread can be started to poll connections (" + std::string(error.what()) +
                              "); raise 'ulimit -u' or the container's limit of processes");
  }
  return {};
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    std::lock_guard lock(worker_mutex_);
    stopping_ = true;
    worker_condition_.notify_all();
  }
  if (started_) {
    driver_alarm_.ring();
    (void)eventfd_write(wake_fd_.get(), 1);
  }
  if (thread_.joinable() && !on_own_thread()) thread_.join();
}

void Engine::set_deferred_hook(std::atomic<bool>* flag, std::function<void()> run) {
  g_deferred_run = std::move(run);
  g_deferred_flag = flag;
}

bool Engine::deferred_waits() const { return g_deferred_flag != nullptr && g_deferred_flag->load(); }

void Engine::kick() {
  if (asleep_until_.load() != 0) (void)eventfd_write(wake_fd_.get(), 1);
}

void Engine::note_earlier_deadline(TimeNs deadline) {
  TimeNs current = next_timer_.load();
  while (deadline < current && !next_timer_.compare_exchange_weak(current, deadline)) {
  }
  if (asleep_until_.load() > deadline) kick();
}

// --- connections -----------------------------------------------------------------------------------

void Engine::add(const ConnectionRef& connection) {
  {
    std::lock_guard lock(list_mutex_);
    if (stopping_) return;
    connections_.emplace(connection->id(), connection);
    connection->attended_by = weak_from_this();
    new_hot_.push_back(connection);
    has_new_hot_ = true;
  }
  {
    std::lock_guard lock(connection->mutex);
    stir_loops(connection);
    connection->session().set_on_granted([weak = std::weak_ptr(connection), engine = weak_from_this()] {
      const auto alive = engine.lock();
      if (auto granted = weak.lock(); granted != nullptr && alive != nullptr) alive->rouse(std::move(granted));
    });
  }
  const TimeNs now = now_ns();
  const TimeNs first_probe = deadline_after(now, connection->options().session.keepalive_interval);
  note_deadline(*connection, std::min(connection->handshake_deadline, first_probe));
  wake_for_timers_at(tend_pool(now));
  kick();
}

void Engine::remove(const ConnectionRef& connection) {
  bool holds_device = false;
  {
    std::lock_guard lock(connection->mutex);
    disable_epoll(*connection);
    connection->attendance = Attendance::kGone;
    timers_.set(connection->timer, kNever);
    holds_device = connection->session().endpoint().holds_device();
  }
  if (hooks_.admissions) hooks_.admissions->end(*connection);
  {
    std::lock_guard lock(list_mutex_);
    connections_.erase(connection->id());
  }
  if (holds_device) connection->release_device_behind();
}

void Engine::abandon() {
  for (const ConnectionRef& connection : connections()) remove(connection);
  if (polling_ == this) return;     // the lists are in use by this thread; they go with the engine
  std::vector<ConnectionRef> gone;  // ends last, without the locks
  std::unique_lock token(token_, std::try_to_lock);
  // Whoever has it sees that the engine stops.
  for (const TimeNs end = now_ns() + kSecond; !token && now_ns() < end; (void)token.try_lock())
    std::this_thread::sleep_for(std::chrono::nanoseconds(kTick));
  if (!token) return;
  std::lock_guard lock(list_mutex_);
  for (HotConnection& hot : std::exchange(hot_, {})) gone.push_back(std::move(hot.connection));
  for (std::vector<ConnectionRef>* list : {&new_hot_, &roused_}) {
    std::ranges::move(*list, std::back_inserter(gone));
    list->clear();
  }
}

void Engine::see_off(const ConnectionRef& connection) {
  {
    std::lock_guard lock(connection->mutex);
    if (connection->attendance == Attendance::kGone) return;
    connection->session().progress(now_ns());  // delivers what the flush ends
    if (!connection->session().quiet() && !stopping_) {
      if (connection->attendance != Attendance::kHot) heat(connection);
      return;
    }
  }
  remove(connection);
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

// --- polling ---------------------------------------------------------------------------------------

// With the token: polls, spins for so long after there was something, then sleeps, until `done` or the deadline, or
// until `sleep` says that no more is to come. Gives the time.
template <typename Done, typename Sleep>
TimeNs Engine::poll_until(TimeNs spin, TimeNs deadline, const Done& done, const Sleep& sleep) {
  const Polling here(this);
  TimeNs now = now_ns();
  TimeNs quiet_since = now;
  TimeNs spin_until = deadline_after(now, spin_time_.now(spin));
  bool goes_on = true;
  Spinner spinner;
  while (true) {
    look_around(now);
    const size_t handled = poll_hot(now);
    if (handled > 0) spin_time_.came_after(now - quiet_since, spin);
    if (done()) return now;
    if (handled > 0) {
      quiet_since = now = now_ns();
      spin_until = deadline_after(now, spin_time_.now(spin));
      spinner.found_something();
    } else {
      if (spin > 0 && !spinner.pause()) continue;
      now = now_ns();
    }
    if (!goes_on || now >= deadline) return now;
    if (handled > 0 || (now < spin_until && !(spin != kNever && Spinner::crowded(now)))) continue;
    arm_hot(now, kNever);
    if (!hot_.empty() || done()) continue;
    goes_on = sleep();
    now = now_ns();
    run_timers(now);
    // Awake for one connection's sake: look at it once, and spin only if there was something.
    spin_until = deadline_after(now, hot_.empty() ? 0 : spin_time_.now(spin));
  }
}

// --- the engine's own thread -----------------------------------------------------------------------

// Goes on where memory ran out for what isn't one connection's, once others have given some back.
void Engine::run_for_good() {
  while (true) {
    try {
      return run();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kTick));
    }
  }
}

void Engine::run() {
  own_ = this;
  TimeNs tick = kTick;  // the last one; the next is longer, where others poll
  TimeNs spin_until = 0;
  Spinner spinner;
  while (!stopping_) {
    if (deferred_waits()) run_deferred();
    if (stopping_) return;  // by what was run
    if (has_workers_.load(std::memory_order_relaxed)) {
      if (park_driver()) {
        driver_alarm_.wait(kNever);
        tick = kTick;
      } else {
        driver_alarm_.wait(tick);
      }
      driver_parked_ = false;
      set_tick(tick, tick_for_workers() ? kTick : tick * 2);
      continue;
    }
    std::lock_guard token(token_);
    if (hooks_.own_spin) {
      const auto done = [this] { return stopping_.load(std::memory_order_relaxed) || deferred_waits(); };
      (void)poll_until(*hooks_.own_spin, kNever, done, [this] {
        (void)wait_events(kNever);
        return true;
      });
      continue;
    }
    const Polling here(this);
    const TimeNs now = now_ns();
    const auto spin = hooks_.spin_beside_loop ? hooks_.spin_beside_loop() : std::nullopt;
    beside_loop_ = spin.has_value();
    const size_t handled = poll_hot(now);
    look_around(now);
    if (handled > 0) {
      spin_until = deadline_after(now, std::min(spin.value_or(0), kLinger));
      spinner.found_something();
      stirred_ = true;
      continue;
    }
    if (now < spin_until && !Spinner::crowded(now)) {
      (void)spinner.pause();
      continue;
    }
    const bool busy = arm_hot(now, beside_loop_ ? kNever : now - kLinger);
    stirred_ = stirred_ || busy;
    if (busy && beside_loop_) {
      (void)spinner.pause();
      continue;
    }
    if (deferred_waits() || has_workers_.load()) continue;
    set_tick(tick, !std::exchange(stirred_, false) && others_poll(now) ? tick * 2 : kTick);
    (void)wait_events(hot_.empty() ? kNever : now + tick);
    run_timers(now_ns());
  }
}

void Engine::set_tick(TimeNs& tick, TimeNs next) {
  tick = std::min(next, kTickMax);
  ticks_seldom_.store(tick > kTick);
}

void Engine::tick_soon() {
  if (has_workers_.load(std::memory_order_relaxed)) return;
  if (must_tick_soon_.load(std::memory_order_relaxed)) return;  // it hasn't looked since
  must_tick_soon_ = true;
  if (ticks_seldom_.load()) kick();  // else it finds that out before it naps for longer
}

// What is run may wait for the GIL until a handler gives it up, and nobody ticks meanwhile. So no message is held until
// it returns, and those held already are sent first.
void Engine::run_deferred() {
  struct Seldom {
    std::atomic<bool>& value;
    const bool before = value.exchange(true);
    ~Seldom() { value = before; }
  };
  const Seldom seldom{ticks_seldom_};
  send_held();
  g_deferred_run();
}

// While workers are away in handlers. Gives whether there was anything to do.
bool Engine::tick_for_workers() {
  if (hooks_.moves_on && hooks_.moves_on(now_ns())) return true;  // they poll between their calls
  if (hooks_.work_waits()) wake_one_worker();
  std::unique_lock token(token_, std::try_to_lock);
  // A worker that polls may leave at any time, for a handler that nobody knows to be slow: one that waits is told then.
  if (!token) return a_worker_waits() || !hooks_.calls_come_alone || !hooks_.calls_come_alone();
  bool any = a_worker_waits();
  // With a worker at leisure it only has to be told.
  for (size_t handled = any ? 0 : 1; handled > 0 && !stopping_;) {
    const Polling here(this);
    const TimeNs now = now_ns();
    (void)wait_events(0);
    handled = poll_hot(now);
    any = any || handled > 0;
    if (handled == 0) arm_hot(now, now - kLinger);
    run_timers(now);
  }
  token.unlock();
  // Only now: one that came for the token meanwhile is either counted here or has found it free.
  offer_token();
  if (hooks_.work_waits()) wake_one_worker();
  return any;
}

// --- workers ---------------------------------------------------------------------------------------

// A server without a listener or a client that it calls back has nothing to poll.
bool Engine::wait_for_start(TimeNs deadline, const std::atomic<bool>& interrupt) {
  std::unique_lock lock(worker_mutex_);
  worker_condition_.wait_for(lock, nap(deadline, kWorkerNap),
                             [&] { return started_.load() || stopping_.load() || interrupt.load(); });
  return started_;
}

Attended Engine::attend(TimeNs spin, TimeNs deadline, const std::atomic<bool>& interrupt) {
  if (!started_.load() && !wait_for_start(deadline, interrupt)) return Attended::kLook;
  if (!has_workers_.load(std::memory_order_relaxed) && !has_workers_.exchange(true))
    (void)eventfd_write(wake_fd_.get(), 1);  // the engine's thread sleeps with the token until now
  std::unique_lock token(token_, std::try_to_lock);
  if (!token) return Attended::kNoToken;
  bool signalled = false;
  const auto done = [&] {
    return hooks_.work_waits() || stopping_.load(std::memory_order_relaxed) ||
           interrupt.load(std::memory_order_relaxed);
  };
  const TimeNs now = poll_until(spin, deadline, done, [&] {
    let_driver_sleep();
    signalled = !wait_events(deadline);
    have_driver_tick();
    return !signalled;
  });
  next_poll_between_.store(now + kPollBetween, std::memory_order_relaxed);
  token.unlock();
  return signalled ? Attended::kSignalled : Attended::kLook;
}

void Engine::poll_between() {
  if (now_ns() < next_poll_between_.load(std::memory_order_relaxed) || !started_.load(std::memory_order_relaxed))
    return;
  const std::unique_lock token(token_, std::try_to_lock);
  if (!token) return;
  const Polling here(this);
  const TimeNs begin = now_ns();
  look_around(begin);
  (void)poll_hot(begin);
  const TimeNs end = now_ns();
  next_poll_between_.store(end + std::max(kPollBetween, kWorkPerPoll * (end - begin)), std::memory_order_relaxed);
}

bool Engine::worker_waits(TimeNs deadline) {
  std::unique_lock lock(worker_mutex_);
  ++workers_waiting_;
  // Counted first, then the last look: see tick_for_workers().
  bool called = token_.try_lock();
  if (called) {
    token_.unlock();
  } else {
    const auto end = std::chrono::steady_clock::now() + nap(deadline, kWorkerNap);
    const auto wanted = [this] { return token_offered_ || stopping_.load() || hooks_.work_waits(); };
    while (!(called = wanted())) {
      if (worker_condition_.wait_until(lock, end) == std::cv_status::timeout) {
        called = wanted();
        break;
      }
      workers_called_ = std::max(workers_called_ - 1, 0);
    }
    token_offered_ = false;
  }
  --workers_waiting_;
  workers_called_ = std::min(workers_called_, workers_waiting_);
  return called;
}

bool Engine::a_worker_waits() {
  std::lock_guard lock(worker_mutex_);
  return workers_waiting_ > 0;
}

void Engine::offer_token() {
  std::lock_guard lock(worker_mutex_);
  if (workers_waiting_ == 0) return;
  token_offered_ = true;
  worker_condition_.notify_one();
}

void Engine::wake_one_worker() {
  {
    std::lock_guard lock(worker_mutex_);
    // One that was called and isn't awake yet won't do for this call as well.
    if (workers_waiting_ > workers_called_) {
      ++workers_called_;
      return worker_condition_.notify_one();
    }
  }
  kick();
}

void Engine::wake_workers() {
  {
    std::lock_guard lock(worker_mutex_);
    worker_condition_.notify_all();
  }
  if (started_) (void)eventfd_write(wake_fd_.get(), 1);
}

}  // namespace rrpc::driver
