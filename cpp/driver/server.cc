#include "driver/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "base/helper_thread.h"
#include "endpoint/counters.h"

namespace rrpc::driver {
namespace {

// How long what was said last may take to reach the peers when the server stops.
constexpr TimeNs kFarewell = 1100 * kMillisecond;
constexpr TimeNs kAskInterval = 50 * kMillisecond;
// Of workers that don't poll. One may be the thread that signals are for.
constexpr TimeNs kTurnNap = 200 * kMillisecond;
constexpr TimeNs kLongNap = 10 * kSecond;
// How long a client may take to answer a GOAWAY; one that is silent holds nobody up.
constexpr TimeNs kGoAwayPatience = kSecond;

// Forgets without destroying.
template <typename T>
void leak(T owner) {
  union Grave {
    explicit Grave(T&& moved) : body(std::move(moved)) {}
    ~Grave() {}  // NOLINT(modernize-use-equals-default): the default would be deleted
    T body;
  };
  [[maybe_unused]] const Grave grave(std::move(owner));
}

// Each may take a few descriptors: no more than half of those that the process may have.
size_t handshakes_max(const Options& options) {
  constexpr size_t kDescriptorsEach = 4;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return options.handshakes_max;
  return std::clamp<size_t>(limit.rlim_cur / 2 / kDescriptorsEach, 1, options.handshakes_max);
}

}  // namespace

Server::Server(const Options& options)
    : options_(options),
      fork_generation_(fork_generation()),
      instance_(random_text()),
      work_(options),
      admissions_(std::make_shared<Admissions>(handshakes_max(options), options.connections_max)) {
  Engine::Hooks hooks;
  hooks.work_waits = [this] { return (work_waits() && !in_loop_) || ended_.load(); };
  if (options.workers_contend) hooks.moves_on = [this](TimeNs now) { return handler_times_.moves_on(now); };
  hooks.calls_come_alone = [this] { return handler_times_.calls_come_alone() && calls_running() == 0; };
  hooks.accept = [this](DeviceEntry& device, provider::Listener& listener, uint64_t id) {
    return accept(device, listener, id);
  };
  hooks.spin_beside_loop = [this] { return in_loop_ ? std::optional(options_.spin_ns()) : std::nullopt; };
  hooks.chores = [this] { refuse_displaced(); };
  hooks.admissions = admissions_;
  engines_.push_back(std::make_shared<Engine>(std::move(hooks)));
  for (uint32_t i = 0; options.pollers > 1 && i < options.pollers; ++i) {
    Engine::Hooks alone;
    alone.admissions = admissions_;
    alone.own_spin = options.spin_ns();
    engines_.push_back(std::make_shared<Engine>(std::move(alone)));
  }
}

Server::~Server() {
  if (!belongs_to_parent()) {
    stop();
    wait_behind(Behind::kEnds);  // those that handlers kept are sinks of this server's, too
    return;
  }
  leak(std::move(engines_));  // their threads and their connections stayed with the parent
  leak(std::move(shared_rings_));
}

bool Server::on_own_thread() const {
  return std::ranges::any_of(engines_, [](const auto& engine) { return engine->on_own_thread(); });
}

std::vector<ConnectionRef> Server::connections() const {
  std::vector<ConnectionRef> all = engines_.front()->connections();
  for (size_t i = 1; i < engines_.size(); ++i) std::ranges::move(engines_[i]->connections(), std::back_inserter(all));
  return all;
}

size_t Server::connection_count() const {
  size_t count = 0;
  for (const auto& engine : engines_) count += engine->connection_count();
  return count;
}

// --- calls -----------------------------------------------------------------------------------------

void Server::on_request(const ConnectionRef& connection, const rpc::ServerCallRef& call) {
  if (call->fetched()) call->set_ready_at(now_ns());
  const Result<Lane> lane = work_.add(connection, call);  // and then, maybe, a look at who sleeps
  if (work_.has_displaced()) engine().ask_for_chores();
  if (!lane.ok()) return connection->session().server().refuse(call, lane.status(), now_ns());
  connection->engine->note_deadline(*connection, call->deadline());
  announce(*lane);
}

rpc::Refusal Server::why_not(Connection& connection, std::string_view method, rpc::Asked asked, TimeNs now) {
  Status why = authorization_.check(connection.verdicts, method, [&] { return connection.peer_identity(); });
  if (why.ok()) why = work_.why_full(connection.id(), method);
  if (!why.ok()) return {std::move(why)};
  return asked == rpc::Asked::kAgain ? rpc::Refusal() : work_.over_rate(method, asked == rpc::Asked::kOnce, now);
}

std::string Server::why_denied(uint64_t handle, std::string_view token_subject) {
  Work work;
  if (!find(handle, work)) return "";  // it is answered
  provider::PeerIdentity caller;
  {
    std::lock_guard lock(work.connection->mutex);
    caller = work.connection->peer_identity();
  }
  return authorization_.why_not(work.call->method(), caller, token_subject);
}

void Server::on_replies_taken(const Connection& connection) {
  work_.go_on(connection.id());
  for (const Lane lane : kLanes)
    if (work_.has_takeable(lane)) announce(lane);
}

// By a poller, which holds no mutex then: the calls are of other connections than the one that displaced them.
void Server::refuse_displaced() {
  for (const uint64_t handle : work_.take_displaced()) {
    Work work;
    bool makes_room = false;
    if (!work_.end(handle, work, makes_room)) continue;
    if (makes_room) announce(work.lane);
    endpoint::count(endpoint::counters().calls_refused);
    (void)answer(work, {.status = work_.no_room(work.lane), .not_executed = true});
  }
}

bool Server::take_back(const Connection& connection, const rpc::ServerCallRef& call) {
  const bool taken = work_.take_back(connection.id(), call);
  if (taken && work_waits()) announce(Lane::kWorkers);  // one that was held may start in its place
  return taken;
}

// Some work for one of the lane. A worker who polls looks for it before it sleeps; what others bring in, callers and
// those who reply, may find all of them asleep.
void Server::announce(Lane lane) {
  if (is_loops(lane)) return tell_loop();
  if (in_loop_ || lane == Lane::kBuiltin) {
    std::lock_guard lock(turn_mutex_);
    return turns_[static_cast<size_t>(lane)].notify_one();
  }
  if (!engine().polled_by_this_thread()) engine().wake_one_worker();
}

bool Server::take(Lane lane, Work& work) {
  if (!work_.take(lane, work)) return false;
  if (lane == Lane::kWorkers && handler_times_.wants_poller(work.alone, work.taken_at)) engine().offer_token();
  return true;
}

NextResult Server::next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt, Lane lane, HeldReplies* held) {
  const NextResult result = find_next(work, deadline, interrupt, lane, held);
  if (result != NextResult::kWork && held != nullptr) held->ring();
  return result;
}

NextResult Server::find_next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt, Lane lane,
                             HeldReplies* held) {
  const bool others_poll = in_loop_ || lane == Lane::kBuiltin;
  bool has_polled = others_poll;
  while (true) {
    if (ended_) return NextResult::kEnded;
    if (interrupt.load()) return NextResult::kInterrupted;
    if (!has_polled && work_.has_takeable(lane)) engine().poll_between();
    if (take(lane, work)) {
      if (!too_late(work)) return NextResult::kWork;
      work = {};  // its connection and arguments aren't this worker's to keep while it waits
      continue;
    }
    if (held != nullptr) held->ring();
    if (now_ns() >= deadline) return NextResult::kTimeout;
    if (others_poll) {
      if (!wait_for_turn(lane, deadline)) return NextResult::kInterrupted;
      continue;
    }
    has_polled = true;
    const Attended attended = engine().attend(options_.spin_ns(), deadline, interrupt);
    if (attended == Attended::kSignalled) return NextResult::kInterrupted;
    if (attended == Attended::kNoToken && !engine().worker_waits(deadline)) return NextResult::kInterrupted;
  }
}

// No handler sees it then.
bool Server::too_late(const Work& work) {
  if (work.resumed) return false;
  if (!work.call->cancelled() && work.taken_at < work.call->deadline()) return false;
  (void)reply(work.handle, rpc::waited_too_long());
  return true;
}

// --- an event loop and workers that don't poll -------------------------------------------------------

void Server::serve_in_loop(std::shared_ptr<LoopQueue> loop, LoopItemRef news, const std::vector<std::string>& methods,
                           uint32_t max_concurrency, bool all) {
  loop_ = std::move(loop);
  loop_news_ = std::move(news);
  work_.route(Lane::kLoop, methods, max_concurrency);
  if (all) {
    work_.route(Lane::kBuiltin, {}, kUnlimited);
    work_.route_others(Lane::kLoop);
  }
  all_in_loop_ = all;
  in_loop_ = true;
}

std::vector<Work> Server::next_in_loop() {
  std::vector<Work> taken;
  loop_told_ = false;  // first: a call that comes meanwhile is told of again
  for (const Lane lane : {Lane::kBuiltin, Lane::kLoop}) {
    if (!is_loops(lane)) continue;
    for (Work work; work_.take(lane, work);) {
      if (too_late(work)) continue;
      loop_->follow(work.connection, work.connection->engine->shared_from_this());
      taken.push_back(std::move(work));
    }
  }
  return taken;
}

void Server::tell_loop() {
  if (!loop_told_.exchange(true)) loop_->push(loop_news_);
}

bool Server::wait_for_turn(Lane lane, TimeNs deadline) {
  std::unique_lock lock(turn_mutex_);
  const TimeNs longest = lane == Lane::kBuiltin ? kLongNap : kTurnNap;
  const TimeNs nap = std::min(longest, std::max<TimeNs>(deadline - now_ns(), 0));
  return turns_[static_cast<size_t>(lane)].wait_for(lock, std::chrono::nanoseconds(nap),
                                                    [&] { return work_.has_takeable(lane) || ended_.load(); });
}

OnCancel Server::on_cancel(uint64_t handle, std::function<void()> callback) {
  Work work;
  if (!find(handle, work)) return OnCancel::kAnswered;
  std::lock_guard lock(work.connection->mutex);
  if (work.call->given_up()) return OnCancel::kCancelled;
  work.call->on_given_up(std::move(callback));
  return OnCancel::kKept;
}

Result<Answered> Server::reply(uint64_t handle, rpc::Reply reply, HeldReplies* held) {
  Work work;
  bool makes_room = false;
  if (!work_.end(handle, work, makes_room)) return unknown_handle(handle);
  if (makes_room) announce(work.lane);
  const TimeNs took = now_ns() - work.taken_at;
  if (work.call->stream() == nullptr) handler_times_.took(took);
  return Answered{work.lane, answer(work, std::move(reply), held), took};
}

Status Server::answer(const Work& work, rpc::Reply reply, HeldReplies* held) {
  const bool may_wait = held != nullptr && held->has_room_for(work.connection) && work_.has_takeable(work.lane);
  std::lock_guard lock(work.connection->mutex);
  const TimeNs now = now_ns();
  // What the client has read meanwhile makes room for this result.
  if (!reply.buffers.empty() && work.connection->session().server().has_unread())
    work.connection->session().progress(now);
  const endpoint::Endpoint::Holding holding(work.connection->session().endpoint(),
                                            may_wait && work.connection->engine->polls_soon(*work.connection));
  work.call->forget_given_up();
  try {
    work.connection->session().server().reply(work.call, std::move(reply), now);
  } catch (const std::bad_alloc&) {
    work.connection->session().close(out_of_memory());
  }
  work.connection->last_active.store(now, std::memory_order_relaxed);
  work.connection->engine->settle(work.connection, now);
  if (may_wait && work.connection->session().endpoint().holds()) held->add(work.connection, now);
  return work.call->outcome();
}

// --- the end ---------------------------------------------------------------------------------------

LeftOver Server::under_way() {
  LeftOver left;
  for (const ConnectionRef& connection : connections()) {
    std::lock_guard lock(connection->mutex);
    if (connection->session().failed()) continue;
    const rpc::ServerSide& server = connection->session().server();
    const size_t results = server.results_under_way();
    left.results += results;
    left.calls += server.calls_under_way() - results;
  }
  left.calls = std::max(left.calls, calls_running());  // handlers whose clients are gone run too
  return left;
}

// Whether no client has a call on its way that it began before it heard that no more are taken.
bool Server::all_drained() {
  return std::ranges::all_of(connections(), [](const ConnectionRef& connection) {
    std::lock_guard lock(connection->mutex);
    const rpc::Session& session = connection->session();
    return session.failed() || !session.ready() || session.drained();
  });
}

LeftOver Server::drain(TimeNs deadline, const std::function<bool()>& interrupted) {
  draining_ = true;
  engine().close_listeners();
  for (const ConnectionRef& connection : connections()) {
    std::lock_guard lock(connection->mutex);
    if (!connection->session().failed()) connection->session().drain("shutting down");
    connection->engine->settle(connection, now_ns());
  }
  TimeNs asked_at = now_ns();
  bool goes_on = true;
  const auto pause = [&](TimeNs until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const TimeNs now = now_ns();
    if (interrupted && now - asked_at >= kAskInterval) {
      asked_at = now;
      goes_on = !interrupted();
    }
    return goes_on && now < until;
  };
  const TimeNs patience = std::min(deadline, asked_at + kGoAwayPatience);
  while (!all_drained() && pause(patience)) {
  }
  // Results wait for their readers too, so there is no one event to wait for.
  LeftOver left = under_way();
  while (left.calls + left.results > 0 && goes_on && pause(deadline)) left = under_way();
  return left;
}

size_t Server::send_away(size_t count, const std::string& reason) {
  std::vector<ConnectionRef> clients = connections();
  std::erase_if(clients, [](const ConnectionRef& connection) {
    std::lock_guard lock(connection->mutex);
    return !connection->retirable || connection->half_open() || connection->session().failed();
  });
  std::ranges::sort(clients, {}, [](const ConnectionRef& connection) { return connection->id(); });
  clients.resize(std::min(count, clients.size()));
  const TimeNs now = now_ns();
  for (const ConnectionRef& connection : clients) {
    std::lock_guard lock(connection->mutex);
    if (connection->session().failed()) continue;
    connection->retire(now, reason);
    connection->engine->note_deadline(*connection, connection->close_at);
    connection->engine->settle(connection, now);
  }
  return clients.size();
}

void Server::close_all(const std::string& reason) {
  for (const ConnectionRef& connection : connections()) {
    {
      std::lock_guard lock(connection->mutex);
      connection->session().close(unavailable(reason));
    }
    connection->engine->see_off(connection);
  }
}

void Server::stop() {
  if (ended_.exchange(true)) return;
  engine().wake_workers();
  work_.wake_returning();
  {
    std::lock_guard lock(turn_mutex_);
    for (std::condition_variable& turn : turns_) turn.notify_all();
  }
  engine().close_listeners();
  const TimeNs give_up = now_ns() + kFarewell;
  for (close_all("the server was stopped"); connection_count() > 0 && now_ns() < give_up;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    close_all("the server was stopped");
  }
  for (const auto& engine : engines_) engine->stop();
  for (const auto& engine : engines_) engine->abandon();
  work_.drop_waiting();
  wait_behind(Behind::kEnds);  // descriptors and slots are free again
}

}  // namespace rrpc::driver
