// The polling of many connections by whoever has time: server workers, or the engine's own thread.
//
// One thread at a time has the polling token. It polls the hot connections; when they stay quiet it arms
// them and sleeps in epoll. A worker that leaves with a request wakes nobody: the engine's thread ticks
// while workers are at work and polls when the token lies idle, so the fast path has no hand-over.
// docs/threads.md tells the whole story.
//
// A connection's place in the polling is its Attendance (connection.h); hot_ is the list of those that are polled,
// new_hot_ of those that come into it. "any" is each state.
//
// state     | event                                        | next state | does
// ----------|----------------------------------------------|------------|-----------------------------------------
// none      | add()                                        | kHot       | new_hot_; a poller moves it into hot_
// kHot      | poll_one(): something came                   | kHot       | last_active; its next deadline is noted
// kHot      | poll_one(): nothing, and it has a ready bit  | kArmed     | leave_to_bit(): ready_sets_ knows the bit
// kHot      | poll_one(): nothing, before many_dear_until_ | kArmed     | leave_to_epoll(), if it may wait by edges
// kHot      | try_arm(): armed, and a poll finds nothing   | kArmed     | enable_epoll(), set_armed(); leaves hot_
// kHot      | try_arm(): something came, or it can't now   | kHot       | stays in hot_
// kArmed    | epoll reports it, or its bit was raised      | kHot       | make_hot(): hot_; sleeping loops are told
// kArmed    | settle(): quiet within kSettleRounds polls   | kArmed     | settle_armed(), settle_handles()
// kArmed    | settle(): still busy, failed, or no epoll    | kHot       | heat(): new_hot_, and kick()
// kArmed    | warm(): a stream's items follow at once      | kHot       | heat()
// kArmed    | take_over(): a caller is going to poll it    | kLeader    | disarm(), else mute_epoll()
// not kGone | detach(): a caller goes to sleep on it       | kLeader    | disable_epoll()
// kLeader   | settle(): leader_asleep, and busy or failed  | kLeader    | wake_leader(); so for other wait handles
// kLeader   | reattach(): by the leader or give_back()     | kArmed     | arms, enable_epoll(), then settle_armed()
// kLeader   | reattach(): failed, or no epoll for it       | kHot       | heat()
// kArmed    | reattach(): by a leader, after give_back()   | kArmed     | settle(): its polls have disarmed it
// not kGone | see_off(): not quiet, and not stopping_      | kHot       | heat(), unless it is kHot
// any       | remove(); poll_one() does: failed, quiet     | kGone      | disable_epoll(); out of connections_
//
// The polling token is token_: free; polls (who has it is in polling_, a worker or the engine's thread); sleeps (who
// has it is in epoll_wait: asleep_until_ isn't 0; of a worker worker_asleep_, too); held is either of these.
//
// state  | event                                        | next state | does
// -------|----------------------------------------------|------------|-----------------------------------------
// free   | attend() of a worker                         | polls      | it has won the try-lock: poll_until()
// free   | run() without workers                        | polls      | the engine's thread; own_spin: poll_until()
// free   | poll_between() of a worker: calls wait       | free       | polls once, if next_poll_between_ has come
// free   | tick_for_workers(): a worker waits           | free       | has it for a moment; then offer_token()
// free   | tick_for_workers(): none waits               | free       | polls while that finds any; offer_token()
// any    | tick_for_workers(): moves_on()               | same       | nothing: they poll between their calls
// any    | offer_token(): before a slow handler, a tick | same       | token_offered_: wakes one in worker_waits()
// held   | attend() of another worker                   | same       | kNoToken: worker_waits() tries once more
// held   | first attend(): the engine's thread has it   | free       | that is woken, lets go, and ticks from now on
// polls  | poll_hot(): something came                   | polls      | the spin begins anew; came_after()
// polls  | nothing in the spin, or crowded()            | sleeps     | arm_hot(); wait_events() once hot_ is empty
// polls  | run() of clients: nothing came               | sleeps     | arms what was quiet for kLinger, then naps,
//        |                                              |            | ever longer while others_poll()
// polls  | run() beside a loop: nothing in the spin     | sleeps     | arms all that no loop polls, then naps
// polls  | attend(): done(), or its deadline            | free       | kLook
// sleeps | an event, kick() or a timer                  | polls      | looks once; spins only if hot_ has any
// sleeps | a signal, to a worker                        | free       | kSignalled, after one more poll
// sleeps | run(): a tick, while a worker sleeps         | sleeps     | the engine's thread parks: driver_parked_
// sleeps | a worker wakes, have_driver_tick()           | polls      | in a tick the engine's thread ticks, unless
//        |                                              |            | a worker sleeps again: let_driver_sleep()
//
// Who wants to sleep arms, polls once more, and sleeps only if that found nothing: what came before the arming is found
// by the poll, what comes after it makes a wait handle ready, so no wake-up is lost. asleep_until_ and kick() are the
// same: each side writes its own word before it reads the other's. A spin as long as a sleep costs is at most twice as
// dear as the optimum (Karlin, Li, Manasse, Owicki, "Empirical Studies of Competitive Spinning for a Shared-Memory
// Multiprocessor", SOSP 1991). Options::spin is longer by default, for the sake of latency; SpinTime halves it each
// time that what came took longer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/numa.h"
#include "driver/admissions.h"
#include "driver/alarm.h"
#include "driver/connection.h"
#include "driver/ready_sets.h"
#include "driver/spinner.h"

namespace rrpc::driver {

// A listening socket in the engine's epoll set.
struct ListenerEntry {
  std::unique_ptr<provider::Listener> listener;
  DeviceEntry* device = nullptr;
  std::shared_ptr<endpoint::SharedRing> receives;  // of its connections, or null; the server keeps it
};

// How a worker's turn at the polling ended.
enum class Attended : uint8_t { kLook, kNoToken, kSignalled };

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  struct Hooks {
    // Whether something waits for a worker (a server's ready queue).
    std::function<bool()> work_waits;
    // Whether workers take calls one after the other, so quickly that another one would only be in their way. May be
    // empty: another one never is.
    std::function<bool(TimeNs now)> moves_on;
    // Whether calls have come one at a time lately, so that no reply waits for the next one's, and none is under way.
    // May be empty: never.
    std::function<bool()> calls_come_alone;
    // The next connection offered, null when there is none; an error: try again in a while.
    std::function<Result<ConnectionRef>(DeviceEntry&, provider::Listener&, uint64_t id)> accept;
    std::shared_ptr<Admissions> admissions;  // of what is accepted
    // What ask_for_chores() asked for. Run by a poller without a mutex.
    std::function<void()> chores;
    // No worker polls: the engine's own thread does, and spins for so long after there was something.
    std::optional<TimeNs> own_spin;
    // Where an event loop handles calls: how long the engine's thread spins on what no loop polls just then. May be
    // empty: no loop ever does.
    std::function<std::optional<TimeNs>()> spin_beside_loop;
  };

  Engine();  // for clients: without hooks
  explicit Engine(Hooks hooks) : hooks_(std::move(hooks)) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Before anything else; does nothing once it has gone well. ResourceExhausted where descriptors or threads run out.
  // With a node its thread then runs there, and the process's pool has its pages from there.
  Status start(const std::optional<NumaNode>& node = std::nullopt);
  uint64_t next_connection_id() { return next_id_.fetch_add(1); }
  // Starts to attend to a connection, until it has failed and is quiet, or is removed. Not once stopped.
  void add(const ConnectionRef& connection);
  void remove(const ConnectionRef& connection);
  // After stop(): lets go of the connections that couldn't be seen off in time.
  void abandon();
  // Removes a closed connection once what it still has to say is said.
  void see_off(const ConnectionRef& connection);
  void add_listener(ListenerEntry entry);
  void close_listeners();
  // From any thread, whatever it holds: the connection is progressed soon by whoever polls, and its deadlines noted.
  void rouse(ConnectionRef connection);
  std::vector<ConnectionRef> connections() const;
  size_t connection_count() const;

  // With the mutex of the connection held, after anything was done with its session: what that left to do is
  // done, or somebody will.
  void settle(const ConnectionRef& connection, TimeNs now) {
    if (needs_settling(*connection)) settle_armed(connection, now);
  }
  // Nobody polls it just now.
  static bool needs_settling(const Connection& connection) {
    return connection.attendance == Attendance::kArmed || connection.leader_asleep;
  }
  // Within two ticks somebody polls it, who sends what waits for a doorbell. Where others polled all that is hot that
  // isn't so, but will be. With the mutex of the connection held.
  bool polls_soon(const Connection& connection) {
    if (connection.attendance.load(std::memory_order_relaxed) != Attendance::kHot) return false;
    tick_soon();
    return !ticks_seldom_.load();
  }
  // Something was begun that nobody waits for: an engine of clients whose ticks are seldom, as others polled, has one
  // each millisecond again. From any thread, whatever it holds.
  void tick_soon();
  // More will be sent in a moment: an armed connection, to be settled after each message, is hot from now on. With the
  // mutex of the connection held.
  void warm(const ConnectionRef& connection) {
    if (connection->attendance == Attendance::kArmed && !connection->leader_asleep) heat(connection);
  }
  // An event loop leaves it for a while: it is armed at once, and the loop told when it has something. False where it
  // can't be just now.
  bool rest(const ConnectionRef& connection, const std::weak_ptr<LoopQueue>& loop, TimeNs now);
  // An event loop expects nothing of it any more. False: it had something just then.
  bool left_by_loop(const ConnectionRef& connection, TimeNs now);
  // A caller goes to sleep on the connection's own handles; and comes back. Mutex of the connection held.
  void detach(Connection& connection);
  void reattach(const ConnectionRef& connection);
  // The same for a caller that polls it for a moment: an answer that it gets itself wakes no other thread. False: it
  // isn't armed, so that nothing is to be given back.
  bool take_over(Connection& connection);
  void give_back(const ConnectionRef& connection, TimeNs now);
  // A deadline that nobody may be waiting for. With the mutex of the connection held.
  void note_deadline(Connection& connection, TimeNs deadline) {
    timers_.note(connection.timer, deadline);
    wake_for_timers_at(deadline);
  }

  // From any thread, whatever it holds: a poller runs the hook soon.
  void ask_for_chores() {
    has_chores_ = true;
    kick();
  }

  // For workers. Polls, spins, sleeps until work waits, the engine is woken by wake_workers(), `interrupt` is
  // set, a signal comes, or the deadline passes. At once when another thread has the token.
  Attended attend(TimeNs spin, TimeNs deadline, const std::atomic<bool>& interrupt);
  // Before a worker takes what waits: polls once if nobody has done so for a while. Workers that always find something
  // waiting would leave everybody else to the next tick.
  void poll_between();
  // For the token or for work, asleep. False: neither came in a while.
  bool worker_waits(TimeNs deadline);
  void wake_workers();
  void wake_one_worker();
  // This thread has the token: it looks for work itself, before it sleeps.
  bool polled_by_this_thread() const { return polling_ == this; }
  // Before a slow handler: a waiting worker, if any, takes over the polling.
  void offer_token();
  void stop();
  // In what the deferred hook runs. It may stop the engine, whose thread ends when that has returned; not destroy it.
  bool on_own_thread() const { return own_ == this; }

  // Process-wide: run by the engine's threads, without locks, when `flag` is set (releases Python objects).
  static void set_deferred_hook(std::atomic<bool>* flag, std::function<void()> run);
  // For tests: a worker sleeps in epoll, and the engine's thread until none has for a tick.
  bool is_parked() const { return worker_asleep_.load() && driver_parked_.load(); }
  bool ticks_seldom() const { return ticks_seldom_; }
  // After the flag may have been set by a thread that doesn't see to it: this engine does soon, in its own or a
  // worker's thread.
  void see_to_deferred() {
    if (deferred_waits()) kick();
  }

 private:
  struct HotConnection {
    ConnectionRef connection;
    provider::NextMessage
        next;                  // until it is here, and nobody has touched the connection, there is nothing to poll for
    uint64_t newest_call = 0;  // of those that it had begun at the last tick of others_poll()
  };

  // Of the engine's thread while anything is hot: at least so long, longer where others poll all of that.
  static constexpr TimeNs kTick = kMillisecond;

  // engine.cc
  Status start_thread_locked();
  void run();
  void run_for_good();
  void set_tick(TimeNs& tick, TimeNs next);
  bool tick_for_workers();
  bool a_worker_waits();
  bool park_driver();
  void let_driver_sleep();
  void have_driver_tick();
  void run_deferred();
  template <typename Done, typename Sleep>
  TimeNs poll_until(TimeNs spin, TimeNs deadline, const Done& done, const Sleep& sleep);
  bool wait_for_start(TimeNs deadline, const std::atomic<bool>& interrupt);
  void kick();
  void wake_for_timers_at(TimeNs deadline) {
    if (deadline < next_timer_.load(std::memory_order_relaxed)) note_earlier_deadline(deadline);
  }
  void note_earlier_deadline(TimeNs deadline);
  bool deferred_waits() const;

  // engine_polling.cc, engine_timers.cc; with the token unless said otherwise
  size_t poll_hot(TimeNs now);
  bool poll_one(HotConnection& hot, TimeNs now, size_t& handled);
  // What has been quiet since then, by what it costs to look at it.
  struct QuietSince {
    TimeNs usual;
    TimeNs dear;    // a system call each time
    TimeNs glance;  // no more than a word in memory
  };
  // Whether any was busy just then: to be polled again.
  bool arm_hot(TimeNs now, const QuietSince& since);
  bool arm_hot(TimeNs now, TimeNs since) { return arm_hot(now, {since, since, since}); }
  bool is_loops(const Connection& connection, TimeNs now) const;
  bool others_poll(TimeNs now);
  // kDone: the hot list is to be rid of it. kBusy: something came, or somebody has it.
  enum class Arming : uint8_t { kDone, kBusy, kNotNow };
  Arming try_arm(const ConnectionRef& connection, TimeNs now);
  bool leave_to_bit(const HotConnection& hot);
  bool leave_to_epoll(Connection& connection, TimeNs now);
  // A thread that sleeps in epoll while others poll (a client's) would be woken by each edge.
  bool may_wait_by_edges(const Connection& connection) const {
    return connection.handles_tell_all() && (hooks_.own_spin || has_workers_.load(std::memory_order_relaxed));
  }
  void set_armed(Connection& connection);
  static void arm_unless_bit(Connection& connection);
  void push_hot(ConnectionRef connection);
  void drop_hot(size_t index);
  void adopt_new_hot();
  void progress_roused(TimeNs now);
  void send_held();  // without the token
  bool wait_events(TimeNs deadline);
  void look_around(TimeNs now);
  void accept_all(uint64_t key);
  TimeNs accept_some(const ListenerEntry& entry);
  TimeNs make_place_for_handshake(TimeNs now);
  bool drop_oldest_handshake(TimeNs now, TimeNs age_min, TimeNs& may_go_at);
  static constexpr uint64_t kListenerBit = 1ULL << 63;  // in epoll's keys, which are connections' ids else
  void watch_listener(uint64_t key, const ListenerEntry& entry, int operation);
  bool make_hot(uint64_t id, bool from_epoll);
  void run_timers(TimeNs now);
  void run_timer(uint64_t id, TimeNs now);
  void tend(const ConnectionRef& connection, TimeNs now);
  static TimeNs tend_pool(TimeNs now);  // from any thread
  ConnectionRef find(uint64_t id) const;
  // Without the token, with the mutex of the connection
  void settle_armed(const ConnectionRef& connection, TimeNs now);
  void heat(const ConnectionRef& connection);
  void stir_loops(const ConnectionRef& connection);
  void settle_handles(const ConnectionRef& connection);
  bool enable_epoll(Connection& connection);
  void disable_epoll(Connection& connection);
  void mute_epoll(Connection& connection);

  // The engine whose token this thread has.
  static thread_local const Engine* polling_;
  static thread_local const Engine* own_;
  class Polling {
   public:
    explicit Polling(const Engine* engine) : before_(std::exchange(polling_, engine)) {}
    ~Polling() { polling_ = before_; }
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;

   private:
    const Engine* const before_;
  };

  const Hooks hooks_;
  std::mutex start_mutex_;
  UniqueFd epoll_fd_;
  UniqueFd wake_fd_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> started_{false};  // the descriptors are there
  std::atomic<bool> stopping_{false};

  std::mutex token_;  // the right to poll: guards the ten below
  std::vector<HotConnection> hot_;
  ReadySets ready_sets_;
  TimeNs next_look_around_ = 0;
  TimeNs next_tidying_ = 0;
  TimeNs many_dear_until_ = 0;  // connections are polled for
  SpinTime spin_time_;
  bool beside_loop_ = false;  // the engine's thread leaves to a loop what that polls
  int empty_looks_ = 0;       // in a row
  bool saw_events_ = false;   // of armed connections in epoll, since the last look
  bool stirred_ = false;      // something came that others may not poll, since the last tick was chosen
  std::atomic<TimeNs> next_poll_between_{0};

  mutable std::mutex list_mutex_;
  std::unordered_map<uint64_t, ConnectionRef> connections_;
  std::unordered_map<uint64_t, std::shared_ptr<ListenerEntry>> listeners_;
  std::vector<ConnectionRef> new_hot_;
  std::vector<ConnectionRef> roused_;
  std::atomic<bool> has_roused_{false};
  std::atomic<bool> has_new_hot_{false};
  std::atomic<bool> has_chores_{false};
  bool listeners_paused_ = false;

  Timers timers_;
  std::atomic<TimeNs> next_timer_{kNever};  // of those, of the pool's and of listeners that pause
  std::atomic<TimeNs> asleep_until_{0};     // of the thread in epoll_wait; 0: none is

  std::mutex worker_mutex_;
  std::condition_variable worker_condition_;
  Alarm driver_alarm_;  // of the engine's thread, while there are workers
  std::atomic<bool> has_workers_{false};
  std::atomic<bool> driver_parked_{false};  // set under worker_mutex_: until no worker has slept in epoll for a tick
  std::atomic<bool> ticks_seldom_{false};   // nothing was found lately, others poll, or the deferred hook runs
  std::atomic<bool> must_tick_soon_{false};
  std::atomic<bool> worker_asleep_{false};  // in epoll, with the token
  int workers_waiting_ = 0;
  int workers_called_ = 0;  // of those, by wake_one_worker()
  bool token_offered_ = false;

  std::thread thread_;
};

}  // namespace rrpc::driver
