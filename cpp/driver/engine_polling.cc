// What the thread with the polling token does: hot connections and epoll. Its listeners are in engine_accepting.cc.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "driver/engine.h"
#include "driver/loop_queue.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kLookAround = 100 * kMicrosecond;  // a busy poller looks at epoll and the timers this often,
constexpr TimeNs kLookSoon = 2 * kMicrosecond;  // and at epoll this often, for so many times, after it had something
constexpr int kEmptyLooks = 32;
constexpr TimeNs kCoolAfter = 3 * kMillisecond;          // and arms what was quiet for so long
constexpr TimeNs kCoolGlancedAfter = 50 * kMillisecond;  // where a look costs no more than a word in memory
// Those that cost a system call each time sooner, if there are more of them than this.
constexpr TimeNs kCoolDearAfter = 100 * kMicrosecond;
constexpr size_t kDearMax = 4;
constexpr TimeNs kManyDear = kMillisecond;  // those that epoll can tell of at once, for so long after there were more
constexpr int kSettleRounds = 4;
constexpr uint64_t kWakeKey = 0;

int timeout_ms_until(TimeNs deadline) {
  if (deadline == kNever) return -1;
  const TimeNs left = deadline - now_ns();
  return left <= 0 ? 0 : static_cast<int>(std::min<TimeNs>((left + kMillisecond - 1) / kMillisecond, 60'000));
}

}  // namespace

// --- epoll -----------------------------------------------------------------------------------------

// False: it can't be slept on now, so it has to be polled.
bool Engine::enable_epoll(Connection& connection) {
  static thread_local std::vector<provider::WaitHandle> handles;
  handles.clear();
  connection.session().endpoint().append_wait_handles(handles);
  // Before it is ready a descriptor may be another one of the same number.
  if (connection.in_epoll && handles == connection.wait_handles && connection.session().ready()) return true;
  connection.wait_handles = handles;
  connection.by_edges = may_wait_by_edges(connection);
  return connection.in_epoll = std::ranges::all_of(handles, [&](const provider::WaitHandle& handle) {
           if (handle.fd == provider::WaitHandle::kPollAgain) return false;
           epoll_event event{};
           event.events = EPOLLIN | (handle.want_write ? uint32_t{EPOLLOUT} : 0u) |
                          (connection.by_edges ? uint32_t{EPOLLET} : uint32_t{EPOLLONESHOT});
           event.data.u64 = connection.id();
           return epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, handle.fd, &event) == 0 ||
                  (errno == ENOENT && epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, handle.fd, &event) == 0);
         });
}

// Takes out only what the connection still has: the number of a descriptor that it has closed may be another
// connection's by now. What stays in the set is reported once at most, of a connection that isn't armed.
void Engine::disable_epoll(Connection& connection) {
  connection.in_epoll = false;
  std::vector<provider::WaitHandle>& handles = connection.wait_handles;
  handles.clear();
  connection.session().endpoint().append_wait_handles(handles);
  for (const provider::WaitHandle& handle : handles) epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, handle.fd, nullptr);
  handles.clear();
}

// They stay in the set, and report nothing but the connection's end until they are enabled again.
void Engine::mute_epoll(Connection& connection) {
  connection.in_epoll = false;
  std::vector<provider::WaitHandle>& handles = connection.wait_handles;
  handles.clear();
  connection.session().endpoint().append_wait_handles(handles);
  for (const provider::WaitHandle& handle : handles) {
    epoll_event event{};
    event.events = EPOLLONESHOT;
    event.data.u64 = connection.id();
    epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, handle.fd, &event);
  }
}

// Those of an armed connection, or of one whose leader sleeps, may be others after somebody has touched it.
void Engine::settle_handles(const ConnectionRef& connection) {
  static thread_local std::vector<provider::WaitHandle> handles;
  handles.clear();
  connection->session().endpoint().append_wait_handles(handles);
  if (handles == connection->wait_handles) return;
  if (connection->leader_asleep) return connection->wake_leader();
  if (!enable_epoll(*connection)) heat(connection);
}

// False: it is hot already, or somebody else's.
bool Engine::make_hot(uint64_t id, bool from_epoll) {
  const ConnectionRef connection = find(id);
  if (connection == nullptr) return false;
  // Whoever arms it polls it afterwards, and thus finds what the bit was raised for.
  if (!from_epoll && connection->attendance.load() != Attendance::kArmed) return false;
  std::lock_guard lock(connection->mutex);
  if (from_epoll) {
    if (!connection->by_edges) connection->in_epoll = false;  // one-shot
    connection->session().endpoint().look_at_wait_handles();
  }
  if (connection->attendance != Attendance::kArmed) return false;
  // First what may find no memory: it is armed still, and is taken again.
  push_hot(connection);
  stir_loops(connection);
  connection->attendance = Attendance::kHot;
  connection->last_active = now_ns();
  return true;
}

// False if a signal came.
bool Engine::wait_events(TimeNs deadline) {
  std::array<epoll_event, 64> events;
  int timeout_ms = 0;
  if (deadline > 0) {
    asleep_until_.store(deadline);
    // Announced: from here on, whoever sets one of these kicks. So one last look is enough.
    const bool asked = must_tick_soon_.exchange(false);
    stirred_ = stirred_ || asked;
    const bool must_look = (asked && ticks_seldom_.load()) || stopping_.load() || has_new_hot_.load() ||
                           has_roused_.load() || has_chores_.load() || deferred_waits() ||
                           (hooks_.work_waits && hooks_.work_waits()) || !ready_sets_.arm();
    timeout_ms =
        must_look ? 0 : timeout_ms_until(std::min({deadline, next_timer_.load(), ready_sets_.look_again_at()}));
  }
  const int count = epoll_wait(epoll_fd_.get(), events.data(), events.size(), timeout_ms);
  const bool signalled = count < 0 && errno == EINTR;
  asleep_until_.store(0);
  stirred_ = stirred_ || count > 0;
  if (deadline > 0) ready_sets_.disarm();
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[static_cast<size_t>(i)].data.u64;
    if (key == kWakeKey) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_fd_.get(), &value);
    } else if ((key & kListenerBit) != 0) {
      accept_all(key);
    } else if (make_hot(key, true)) {
      saw_events_ = true;
    }
  }
  return !signalled;
}

// --- hot connections -------------------------------------------------------------------------------

void Engine::push_hot(ConnectionRef connection) {
  if (connection->in_hot_list) return;
  hot_.push_back({std::move(connection), {}});
  hot_.back().connection->in_hot_list = true;
}

void Engine::drop_hot(size_t index) {
  hot_[index].connection->in_hot_list = false;
  std::swap(hot_[index], hot_.back());
  hot_.pop_back();
}

void Engine::adopt_new_hot() {
  if (!has_new_hot_.load(std::memory_order_relaxed)) return;
  std::vector<ConnectionRef> adopted;
  {
    std::lock_guard lock(list_mutex_);
    adopted.swap(new_hot_);
    has_new_hot_ = false;
  }
  stirred_ = true;
  for (ConnectionRef& connection : adopted) push_hot(std::move(connection));
}

// To be polled by whoever has the token or gets it next.
void Engine::heat(const ConnectionRef& connection) {
  connection->attendance = Attendance::kHot;
  connection->last_active = now_ns();
  stir_loops(connection);
  {
    std::lock_guard lock(list_mutex_);
    new_hot_.push_back(connection);
    has_new_hot_ = true;
  }
  kick();
}

void Engine::rouse(ConnectionRef connection) {
  {
    std::lock_guard lock(list_mutex_);
    roused_.push_back(std::move(connection));
    has_roused_ = true;
  }
  kick();
}

void Engine::stir_loops(const ConnectionRef& connection) {
  for (const auto& asleep : std::exchange(connection->loops_asleep, {})) {
    if (const auto loop = asleep.lock()) loop->stir(connection, weak_from_this().lock());
  }
}

// A loop that has had something else to do for half a tick is waited for no more.
bool Engine::is_loops(const Connection& connection, TimeNs now) const {
  return beside_loop_ && now - connection.loop_polled_at.load(std::memory_order_relaxed) < kTick / 2;
}

bool Engine::poll_one(HotConnection& hot, TimeNs now, size_t& handled) {
  const ConnectionRef& connection = hot.connection;
  if (connection->attendance.load(std::memory_order_relaxed) != Attendance::kHot) return false;
  if (is_loops(*connection, now)) return true;
  const bool here = hot.next.here();
  if (!here && !connection->mutex.touched()) return true;
  std::unique_lock lock(connection->mutex, std::try_to_lock);
  if (!lock) return true;
  // The round's may be of long before the message, where this thread had to wait for a core.
  if (here && hot.next.word != nullptr) now = now_ns();
  connection->mutex.clear_mark();
  const size_t progress = connection->session().progress(now);
  handled += progress;
  if (progress > 0) {
    connection->last_active.store(now, std::memory_order_relaxed);
    note_deadline(*connection, connection->session().next_tick());
  }
  hot.next = progress > 0 ? provider::NextMessage() : connection->session().endpoint().next_message();
  if (!connection->session().failed() || !connection->session().quiet())
    return progress > 0 || !(leave_to_bit(hot) || leave_to_epoll(*connection, now));
  lock.unlock();
  remove(connection);
  return false;
}

// As armed, by a bit: its peer's next message raises that. False: it has none, or there is something to poll for. With
// the mutex.
bool Engine::leave_to_bit(const HotConnection& hot) {
  Connection& connection = *hot.connection;
  if (hot.next.bits == nullptr || connection.session().must_be_armed()) return false;
  if (connection.session().failed() || !enable_epoll(connection)) return false;
  if (connection.ready_bits == nullptr) {
    const auto bits = hot.next.bits->shared_from_this();
    ready_sets_.add(bits, hot.next.bit, connection.id());
    bits->on_bell([self = weak_from_this()] {
      if (const auto engine = self.lock()) engine->kick();
    });
    connection.ready_bits = bits;
  }
  set_armed(connection);
  return true;
}

// Where many take turns epoll finds those that have something in one system call for all. With the mutex, after a poll
// that found nothing.
bool Engine::leave_to_epoll(Connection& connection, TimeNs now) {
  if (now >= many_dear_until_ || !may_wait_by_edges(connection) || connection.session().failed()) return false;
  if (!enable_epoll(connection)) return false;
  set_armed(connection);
  return true;
}

// What has come due since its timer was set has to be noted now: nobody looks at it before something comes.
void Engine::set_armed(Connection& connection) {
  note_deadline(connection, connection.session().next_tick());
  connection.attendance = Attendance::kArmed;
}

void Engine::arm_unless_bit(Connection& connection) {
  rpc::Session& session = connection.session();
  if (connection.ready_bits == nullptr || connection.leader_asleep || session.must_be_armed()) session.arm();
}

size_t Engine::poll_hot(TimeNs now) {
  if (has_roused_.load(std::memory_order_relaxed)) progress_roused(now);
  adopt_new_hot();
  if (has_chores_.load(std::memory_order_relaxed) && has_chores_.exchange(false)) hooks_.chores();
  ready_sets_.take([this](uint64_t id) { make_hot(id, false); });
  if (hot_.size() > kDearMax) many_dear_until_ = now + kManyDear;
  size_t handled = 0;
  for (size_t i = 0; i < hot_.size();) {
    if (poll_one(hot_[i], now, handled))
      ++i;
    else
      drop_hot(i);
  }
  return handled;
}

Engine::Arming Engine::try_arm(const ConnectionRef& connection, TimeNs now) {
  std::unique_lock lock(connection->mutex, std::try_to_lock);
  if (!lock) return Arming::kBusy;
  if (connection->attendance != Attendance::kHot) return Arming::kDone;
  if (connection->session().failed()) return Arming::kNotNow;
  connection->session().arm();
  if (connection->session().progress(now) > 0) {
    connection->last_active = now;
    return Arming::kBusy;
  }
  if (connection->session().failed() || !enable_epoll(*connection)) return Arming::kNotNow;
  set_armed(*connection);
  return Arming::kDone;
}

// Whether the loop may go. What comes next would else wait for this engine's next tick.
bool Engine::left_by_loop(const ConnectionRef& connection, TimeNs now) {
  return !hooks_.spin_beside_loop || try_arm(connection, now) != Arming::kBusy;
}

bool Engine::rest(const ConnectionRef& connection, const std::weak_ptr<LoopQueue>& loop, TimeNs now) {
  {
    std::unique_lock lock(connection->mutex, std::try_to_lock);
    if (!lock) return false;
    auto& loops = connection->loops_asleep;
    const bool known =
        std::ranges::any_of(loops, [&](const auto& l) { return !l.owner_before(loop) && !loop.owner_before(l); });
    if (!known) loops.push_back(loop);
  }
  return try_arm(connection, now) == Arming::kDone;
}

bool Engine::arm_hot(TimeNs now, const QuietSince& quiet_since) {
  bool any_busy = false;
  for (size_t i = 0; i < hot_.size();) {
    const ConnectionRef& connection = hot_[i].connection;
    if (is_loops(*connection, now)) {
      // Its loop may never leave it, and nobody else asks when it is due.
      if (const std::unique_lock lock(connection->mutex, std::try_to_lock); lock)
        note_deadline(*connection, connection->session().next_tick());
      ++i;
      continue;
    }
    const TimeNs since = !connection->polls_cheaply()   ? quiet_since.dear
                         : hot_[i].next.word != nullptr ? quiet_since.glance
                                                        : quiet_since.usual;
    const bool due = connection->last_active.load(std::memory_order_relaxed) <= since;
    const Arming arming = due ? try_arm(connection, now) : Arming::kNotNow;
    any_busy = any_busy || arming == Arming::kBusy;
    if (arming == Arming::kDone)
      drop_hot(i);
    else
      ++i;
  }
  return any_busy;
}

// Callers of clients, without a pause, all that is hot; and they wait for all that is under way there. What was begun
// before the last tick nobody may wait for.
bool Engine::others_poll(TimeNs now) {
  if (hot_.empty() || beside_loop_) return false;
  for (HotConnection& hot : hot_) {
    Connection& connection = *hot.connection;
    if (now - connection.last_active.load(std::memory_order_relaxed) >= kTick) return false;
    std::lock_guard lock(connection.mutex);
    const rpc::ClientSide& client = connection.session().client();
    const uint64_t newest_before = std::exchange(hot.newest_call, client.newest_call());
    const uint64_t oldest = client.oldest_call();
    if (oldest != 0 && oldest <= newest_before) return false;
  }
  return true;
}

// Whoever polls without a pause does this now and again: hot connections must not starve the others.
void Engine::look_around(TimeNs now) {
  if (now < next_look_around_) return;
  (void)wait_events(0);
  // Clients that take turns are all armed when their turn comes.
  empty_looks_ = std::exchange(saw_events_, false) ? 0 : std::min(empty_looks_ + 1, kEmptyLooks);
  next_look_around_ = now + (hot_.empty() || empty_looks_ < kEmptyLooks ? kLookSoon : kLookAround);
  if (now < next_tidying_) return;
  next_tidying_ = now + kLookAround;
  ready_sets_.tidy();
  arm_hot(now, {.usual = now - kCoolAfter,
                .dear = hot_.size() > kDearMax ? now - kCoolDearAfter : now - kCoolAfter,
                .glance = now - kCoolGlancedAfter});
  run_timers(now);
}

// A thread that has the token may have polled already those that hold something now, and may be about to leave.
void Engine::send_held() {
  std::vector<ConnectionRef> looked_at;
  if (const std::unique_lock token(token_, std::try_to_lock); token) {
    adopt_new_hot();
    for (const HotConnection& hot : hot_) {
      if (hot.connection->mutex.touched()) looked_at.push_back(hot.connection);
    }
  } else {
    looked_at = connections();
  }
  for (const ConnectionRef& connection : looked_at) {
    if (connection->attendance.load(std::memory_order_relaxed) != Attendance::kHot) continue;
    std::lock_guard lock(connection->mutex);
    connection->session().send_held();
    settle(connection, now_ns());
  }
}

// --- connections that others have touched ----------------------------------------------------------

void Engine::settle_armed(const ConnectionRef& connection, TimeNs now) {
  rpc::Session& session = connection->session();
  for (int round = 0; round < kSettleRounds && !session.failed(); ++round) {
    arm_unless_bit(*connection);
    if (session.progress(now) == 0 && !session.failed()) {
      note_deadline(*connection, session.next_tick());
      return settle_handles(connection);
    }
  }
  // It has failed or is busy.
  if (connection->leader_asleep) return connection->wake_leader();
  heat(connection);
}

void Engine::detach(Connection& connection) {
  disable_epoll(connection);
  if (connection.attendance != Attendance::kGone) connection.attendance = Attendance::kLeader;
}

bool Engine::take_over(Connection& connection) {
  if (connection.attendance != Attendance::kArmed || connection.leader_asleep || connection.session().failed())
    return false;
  if (!connection.session().endpoint().disarm()) mute_epoll(connection);
  connection.attendance = Attendance::kLeader;
  return true;
}

// Another caller may have gone to sleep on it meanwhile.
void Engine::give_back(const ConnectionRef& connection, TimeNs now) {
  if (connection->leader_asleep)
    settle(connection, now);
  else
    reattach(connection);
}

void Engine::reattach(const ConnectionRef& connection) {
  // Another caller may have given it back while this leader was waking up: the leader's polls have disarmed it since.
  // A connection that was removed or is being seen off has nothing to settle.
  if (connection->attendance != Attendance::kLeader) return settle(connection, now_ns());
  if (connection->session().failed()) return heat(connection);
  arm_unless_bit(*connection);  // first: the event that woke the leader need not wake the engine too
  if (!enable_epoll(*connection)) return heat(connection);
  set_armed(*connection);
  settle_armed(connection, now_ns());
}

}  // namespace rrpc::driver
