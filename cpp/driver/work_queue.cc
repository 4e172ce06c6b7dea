#include "driver/work_queue.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "endpoint/counters.h"

namespace rrpc::driver {
namespace {

// One connection may have a quarter of the handlers that take streams: the rest is for others.
constexpr size_t kShares = 4;
// Calls of the built-in services that may wait: those of the user's services take none of their places.
constexpr size_t kBuiltinQueue = 256;

bool takes_stream(const Work& work) {
  return work.lane == Lane::kWorkers && (work.call->kind() & rpc::kClientStreams) != 0;
}

WorkKey running_key(uint64_t handle) { return {0, handle}; }

std::string rate_text(double rate) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "rate_limit: the server takes %.6g calls a second (--rate-limit %.6g)", rate,
                rate);
  return text.data();
}

}  // namespace

WorkQueue::WorkQueue(const Options& options)
    : rate_text_(rate_text(options.rate_limit)),
      rate_(options.rate_limit, options.rate_burst),
      streams_max_(options.stream_handlers_max),
      streams_share_(std::max<size_t>(streams_max_ / kShares, 1)) {
  calls_.most = options.max_queue;
  builtin_.most = kBuiltinQueue;
  queue(Lane::kWorkers).max_concurrency = options.max_concurrency;
}

void WorkQueue::route(Lane lane, const std::vector<std::string>& methods, uint32_t max_concurrency) {
  std::lock_guard lock(mutex_);
  for (const std::string& method : methods) routes_.emplace(method, lane);
  queue(lane).max_concurrency = max_concurrency;
}

// --- the bound -------------------------------------------------------------------------------------

Status WorkQueue::no_room(Lane lane) const {
  if (lane == Lane::kBuiltin)
    return resource_exhausted(std::to_string(kBuiltinQueue) +
                              " calls of the built-in services wait, as many as may; try again later");
  const std::string limit = std::to_string(calls_.most);
  return resource_exhausted("max_queue: " + limit + " calls wait for a worker, as many as may (--max-queue " + limit +
                            "); try again later");
}

Status WorkQueue::why_full(uint64_t connection, std::string_view method) {
  const Queue& workers = queue(Lane::kWorkers);
  const Queue& loop = queue(Lane::kLoop);
  const size_t most = workers.max_concurrency + loop.max_concurrency + calls_.most;  // set before the first call
  if (most >= kUnlimited) return {};
  std::lock_guard lock(mutex_);
  if (lane_of(method) == Lane::kBuiltin) return {};
  const bool room = workers.waiting() + loop.waiting() + workers.running + loop.running < most;
  return room || calls_.may_displace(connection) ? Status() : no_room(Lane::kWorkers);
}

rpc::Refusal WorkQueue::over_rate(std::string_view method, bool counts, TimeNs now) {
  if (!rate_.limits()) return {};
  std::lock_guard lock(mutex_);
  if (lane_of(method) == Lane::kBuiltin) return {};
  const TimeNs wait = counts ? rate_.take(now) : rate_.wait(now);
  if (wait <= 0) return {};
  endpoint::count(endpoint::counters().calls_over_rate);
  const TimeNs wait_ms = (wait + kMillisecond - 1) / kMillisecond;
  return {resource_exhausted(rate_text_ + "; try again in " + std::to_string(wait_ms) + " ms"), wait_ms};
}

// Refused is what came last of who has most: it goes to those that are handled, until it is answered.
void WorkQueue::displace(Bound& full) {
  const uint64_t connection = full.waiting.most().second;
  Turns* from = nullptr;
  uint64_t newest = 0;
  for (const Lane lane : kLanes) {
    if (&bound(lane) != &full) continue;
    for (Turns* turns : {&queue(lane).ready, &queue(lane).held, &queue(lane).backed_up}) {
      if (turns->newest_of(connection) <= newest) continue;
      newest = turns->newest_of(connection);
      from = turns;
    }
  }
  RRPC_CHECK(from != nullptr, "a connection with most calls waiting has one");
  WorkByKey::node_type node = from->take_back({connection, newest});
  no_longer_waits(node.mapped());
  node.mapped().aside = true;
  node.key() = running_key(newest);
  if (from == &queue(Lane::kWorkers).held) streams_.add(connection);  // until it is answered
  running_.insert(std::move(node));
  displaced_.push_back(newest);
  has_displaced_ = true;
}

std::vector<uint64_t> WorkQueue::take_displaced() {
  std::lock_guard lock(mutex_);
  has_displaced_ = false;
  return std::exchange(displaced_, {});
}

// --- calls that wait -------------------------------------------------------------------------------

bool WorkQueue::may_handle_stream(uint64_t connection) const {
  return streams_.total() < streams_max_ && streams_.of(connection) < streams_share_;
}

void WorkQueue::wait_in(Queue& target, Work work) {
  const uint64_t connection = work.connection->id();
  if (bound(work.lane).limits()) bound(work.lane).waiting.add(connection);
  const bool stream = takes_stream(work);
  const bool may_start = !stream || may_handle_stream(connection);
  if (stream && may_start) streams_.add(connection);
  (may_start ? target.ready : target.held).add(std::move(work));
  target.count();
}

void WorkQueue::no_longer_waits(const Work& work) {
  if (bound(work.lane).limits()) bound(work.lane).waiting.remove(work.connection->id());
  queue(work.lane).count();
}

// One that was held may start in the place of this one.
void WorkQueue::stream_ended(const Work& work) {
  if (!takes_stream(work)) return;
  streams_.remove(work.connection->id());
  Queue& from = queue(work.lane);
  WorkByKey::node_type next = from.held.take([this](uint64_t connection) { return may_handle_stream(connection); });
  if (next.empty()) return;
  streams_.add(next.key().first);
  from.ready.add(std::move(next.mapped()));
  from.count();
}

Result<Lane> WorkQueue::add(const ConnectionRef& connection, const rpc::ServerCallRef& call) {
  std::lock_guard lock(mutex_);
  const Lane lane = lane_of(call->method());
  Queue& target = queue(lane);
  if (target.waiting() + target.running >= target.max_concurrency + bound(lane).most) {
    if (!bound(lane).may_displace(connection->id())) return no_room(lane);
    displace(bound(lane));
  }
  call->ticket = next_handle_++;
  wait_in(target, Work{call->ticket, connection, call, 0, lane});
  return lane;
}

bool WorkQueue::take_back(uint64_t connection, const rpc::ServerCallRef& call) {
  WorkByKey::node_type taken;  // let go of without the lock
  std::lock_guard lock(mutex_);
  const WorkKey key{connection, call->ticket};
  for (Queue& from : queues_) {
    if (taken = from.held.take_back(key); !taken.empty()) {
      no_longer_waits(taken.mapped());
      return true;
    }
    if (taken = from.ready.take_back(key); taken.empty()) taken = from.backed_up.take_back(key);
    if (taken.empty()) continue;
    no_longer_waits(taken.mapped());
    stream_ended(taken.mapped());
    return true;
  }
  return false;
}

// The next that may begin; those it meets that may not are out of the way from then on.
WorkByKey::node_type WorkQueue::take_ready(Queue& from) {
  while (true) {
    WorkByKey::node_type node = from.ready.take([](uint64_t) { return true; });
    if (node.empty() || !node.mapped().connection->session().server().backed_up()) return node;
    from.backed_up.add(std::move(node));
    endpoint::count(endpoint::counters().reply_waits);
    from.count();
  }
}

void WorkQueue::go_on(uint64_t connection) {
  std::lock_guard lock(mutex_);
  for (Queue& queue : queues_) {
    for (WorkByKey::node_type node; !(node = queue.backed_up.take_of(connection)).empty();)
      queue.ready.add(std::move(node));
    queue.count();
  }
}

bool WorkQueue::take(Lane lane, Work& work) {
  Queue& from = queue(lane);
  if (from.takeable.load() == 0) return false;
  std::lock_guard lock(mutex_);
  if (from.places() == 0) return false;
  from.resumed_last = !from.resumed.empty() && from.may_resume();
  if (from.resumed_last && take_resumed(from, work)) return true;
  if (from.places() == 0) return false;
  WorkByKey::node_type node = take_ready(from);
  if (node.empty()) return false;
  Work& taken = node.mapped();
  node.key() = running_key(taken.handle);
  ++from.running;
  no_longer_waits(taken);
  taken.taken_at = now_ns();
  taken.alone = from.running == 1 && from.waiting() == 0;
  work = taken;
  running_.insert(std::move(node));
  let_return(from);
  return true;
}

// --- calls that are handled ------------------------------------------------------------------------

// False: none is for this worker. They were answered meanwhile, or go on in a thread of their own.
bool WorkQueue::take_resumed(Queue& from, Work& work) {
  while (!from.resumed.empty() && from.places() > 0) {
    const auto it = running_.find(running_key(from.resumed.front()));
    from.resumed.pop_front();
    from.count();
    if (it == running_.end()) continue;
    const bool elsewhere = it->second.returning;
    give_place(from, it->second);
    if (elsewhere) return false;
    work = it->second;
    work.taken_at = now_ns();
    work.resumed = true;
    return true;
  }
  return false;
}

void WorkQueue::give_place(Queue& from, Work& work) {
  if (std::exchange(work.aside, false)) ++from.running;
  if (std::exchange(work.returning, false)) returned_.notify_all();
  from.count();
}

// A thread that waits for a place has it, if it is its turn: it needs no worker to find it.
void WorkQueue::let_return(Queue& from) {
  if (from.resumed.empty() || from.places() == 0 || !from.may_resume()) return;
  const auto it = running_.find(running_key(from.resumed.front()));
  if (it == running_.end() || !it->second.returning) return;
  from.resumed.pop_front();
  from.resumed_last = true;
  give_place(from, it->second);
}

// Gives whether one that waited may run now.
bool WorkQueue::free_place(Queue& from) {
  const bool was_full = from.places() == 0;
  --from.running;
  from.count();
  let_return(from);
  return was_full && from.takeable > 0;
}

void WorkQueue::set_aside(uint64_t handle, bool& makes_room) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(running_key(handle));
  if (it == running_.end() || std::exchange(it->second.aside, true)) return;
  makes_room = free_place(queue(it->second.lane));
}

bool WorkQueue::resume(uint64_t handle, Lane& lane) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(running_key(handle));
  if (it == running_.end()) return false;
  lane = it->second.lane;
  queue(lane).resumed.push_back(handle);
  queue(lane).count();
  return true;
}

void WorkQueue::take_up(uint64_t handle, const std::atomic<bool>& ended) {
  std::unique_lock lock(mutex_);
  const auto it = running_.find(running_key(handle));  // stays: only this thread's handler ends it
  if (it == running_.end() || !it->second.aside) return;
  Work& work = it->second;
  Queue& from = queue(work.lane);
  work.returning = true;
  from.resumed.push_back(handle);
  from.count();
  let_return(from);
  returned_.wait(lock, [&] { return !work.returning || ended.load(); });
}

void WorkQueue::wake_returning() {
  std::lock_guard lock(mutex_);
  returned_.notify_all();
}

bool WorkQueue::find(uint64_t handle, Work& work) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(running_key(handle));
  if (it == running_.end()) return false;
  work = it->second;
  return true;
}

bool WorkQueue::end(uint64_t handle, Work& work, bool& makes_room) {
  WorkByKey::node_type ended;
  std::lock_guard lock(mutex_);
  ended = running_.extract(running_key(handle));
  if (ended.empty()) return false;
  work = std::move(ended.mapped());
  stream_ended(work);
  Queue& from = queue(work.lane);
  makes_room = work.aside ? from.takeable > 0 : free_place(from);
  return true;
}

void WorkQueue::drop_waiting() {
  std::vector<WorkByKey> dropped;  // let go of without the lock
  std::lock_guard lock(mutex_);
  for (Queue& queue : queues_) {
    for (Turns* turns : {&queue.ready, &queue.held, &queue.backed_up}) dropped.push_back(turns->take_all());
    queue.count();
  }
  calls_.waiting.clear();
  builtin_.waiting.clear();
}

size_t WorkQueue::waiting_now() const {
  size_t sum = 0;
  for (const Queue& queue : queues_) sum += queue.waiting();
  return sum;
}

size_t WorkQueue::waiting() {
  std::lock_guard lock(mutex_);
  return waiting_now();
}

size_t WorkQueue::waiting_or_running() {
  std::lock_guard lock(mutex_);
  return waiting_now() + running_.size();
}

}  // namespace rrpc::driver
