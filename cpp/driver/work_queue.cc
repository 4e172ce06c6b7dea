#include "driver/work_queue.h"

#include <algorithm>
#include <utility>

namespace rrpc::driver {

WorkQueue::WorkQueue(const Options& options) : max_queue_(options.max_queue) {
  workers_.max_concurrency = options.max_concurrency;
}

void WorkQueue::route_to_loop(const std::vector<std::string>& methods, uint32_t max_concurrency) {
  std::lock_guard lock(mutex_);
  loop_methods_.insert(methods.begin(), methods.end());
  loop_.max_concurrency = max_concurrency;
}

Status WorkQueue::no_room() const {
  const std::string limit = std::to_string(max_queue_);
  return resource_exhausted("max_queue: " + limit + " calls wait for a worker, as many as may (--max-queue " + limit +
                            "); try again later");
}

Status WorkQueue::why_full() {
  std::lock_guard lock(mutex_);
  const size_t waiting = workers_.ready.size() + loop_.ready.size();
  const size_t most = workers_.max_concurrency + loop_.max_concurrency + max_queue_;
  return waiting + workers_.running + loop_.running < most ? Status() : no_room();
}

Result<Lane> WorkQueue::add(const ConnectionRef& connection, const rpc::ServerCallRef& call) {
  std::lock_guard lock(mutex_);
  const bool to_loop = !loop_methods_.empty() && loop_methods_.contains(std::string(call->method()));
  const Lane lane = to_loop ? Lane::kLoop : Lane::kWorkers;
  Queue& target = queue(lane);
  if (target.ready.size() + target.running >= target.max_concurrency + max_queue_) return no_room();
  call->ticket = next_handle_++;
  target.ready.emplace_hint(target.ready.end(), call->ticket, Work{call->ticket, connection, call, 0, lane});
  target.count();
  return lane;
}

bool WorkQueue::take_back(const rpc::ServerCallRef& call) {
  WorkByHandle::node_type taken;  // let go of without the lock
  std::lock_guard lock(mutex_);
  for (Queue* from : {&workers_, &loop_}) {
    if (taken.empty()) taken = from->ready.extract(call->ticket);
    from->count();
  }
  return !taken.empty();
}

bool WorkQueue::take(Lane lane, Work& work) {
  Queue& from = queue(lane);
  if (from.takeable.load() == 0) return false;
  std::lock_guard lock(mutex_);
  from.resumed_last = !from.resumed.empty() && (!from.resumed_last || from.startable() == 0);
  if (from.resumed_last && take_resumed(from, work)) return true;
  if (from.startable() == 0) return false;
  const auto taken = running_.insert(from.ready.extract(from.ready.begin())).position;
  ++from.running;
  from.count();
  taken->second.taken_at = now_ns();
  work = taken->second;
  return true;
}

// False: they were all answered meanwhile.
bool WorkQueue::take_resumed(Queue& from, Work& work) {
  while (!from.resumed.empty()) {
    const auto it = running_.find(from.resumed.front());
    from.resumed.pop_front();
    from.count();
    if (it == running_.end()) continue;
    if (std::exchange(it->second.aside, false)) ++from.running;
    from.count();
    work = it->second;
    work.taken_at = now_ns();
    work.resumed = true;
    return true;
  }
  return false;
}

void WorkQueue::set_aside(uint64_t handle, bool& makes_room) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(handle);
  if (it == running_.end() || std::exchange(it->second.aside, true)) return;
  Queue& from = queue(it->second.lane);
  makes_room = from.makes_room();
  --from.running;
  from.count();
}

bool WorkQueue::resume(uint64_t handle, Lane& lane) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(handle);
  if (it == running_.end()) return false;
  lane = it->second.lane;
  queue(lane).resumed.push_back(handle);
  queue(lane).count();
  return true;
}

bool WorkQueue::find(uint64_t handle, Work& work) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(handle);
  if (it == running_.end()) return false;
  work = it->second;
  return true;
}

bool WorkQueue::end(uint64_t handle, Work& work, bool& makes_room) {
  WorkByHandle::node_type ended;
  std::lock_guard lock(mutex_);
  ended = running_.extract(handle);
  if (ended.empty()) return false;
  work = std::move(ended.mapped());
  if (work.aside) return true;
  Queue& from = queue(work.lane);
  makes_room = from.makes_room();
  --from.running;
  from.count();
  return true;
}

void WorkQueue::drop_waiting() {
  WorkByHandle dropped[2];  // let go of without the lock
  std::lock_guard lock(mutex_);
  workers_.ready.swap(dropped[0]);
  loop_.ready.swap(dropped[1]);
  workers_.count();
  loop_.count();
}

size_t WorkQueue::waiting() {
  std::lock_guard lock(mutex_);
  return workers_.ready.size() + loop_.ready.size();
}

size_t WorkQueue::waiting_or_running() {
  std::lock_guard lock(mutex_);
  return workers_.ready.size() + loop_.ready.size() + running_.size();
}

}  // namespace rrpc::driver
