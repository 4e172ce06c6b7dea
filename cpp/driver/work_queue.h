// A server's calls: those that wait to be handled, and those that are. Each goes down one of three lanes: to the
// workers, to an event loop, or to the worker of the built-in services, which is there when all others are busy.
//
// No connection takes what the others need: connections take turns, a full queue refuses the newest call of the
// connection that has most waiting, one connection gets at most a share of the handlers that take streams, and none of
// a connection's calls begins while its client leaves many replies unread.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver/rate_limit.h"
#include "driver/turns.h"

namespace rrpc::driver {

inline Status unknown_handle(uint64_t handle) {
  return {StatusCode::kNotFound, "call handle " + std::to_string(handle) + " is unknown or was answered already"};
}

class WorkQueue {
 public:
  explicit WorkQueue(const Options& options);

  // Calls of these methods go down this lane, which handles so many of them at a time. Before the
  // first.
  void route(Lane lane, const std::vector<std::string>& methods, uint32_t max_concurrency);

  // Calls of all methods that nothing was said about.
  void route_others(Lane lane) { others_ = lane; }

  // Why a call of this connection would be refused, as far as that can be told before it is added. No method: of one
  // that isn't known.
  Status why_full(uint64_t connection, std::string_view method);
  // Why a call of this method is over the server's rate. counts: if it isn't, it is one of those taken.
  rpc::Refusal over_rate(std::string_view method, bool counts, TimeNs now);
  // The call waits from now on; the lane it went to, or why there is no room. It may have displaced another.
  Result<Lane> add(const ConnectionRef& connection, const rpc::ServerCallRef& call);
  // The handles of calls that had to make room for those of other connections: to be answered with no_room(), which
  // takes the mutexes of their connections.
  bool has_displaced() const { return has_displaced_.load(std::memory_order_relaxed); }
  std::vector<uint64_t> take_displaced();
  Status no_room(Lane lane) const;
  // The connection isn't backed up any more.
  void go_on(uint64_t connection);
  // False: it is handled already, or isn't known.
  bool take_back(uint64_t connection, const rpc::ServerCallRef& call);
  // The next to handle, if its lane may have one more.
  bool take(Lane lane, Work& work);
  bool find(uint64_t handle, Work& work);
  // It is answered, once. makes_room: one that waited may take its place.
  bool end(uint64_t handle, Work& work, bool& makes_room);
  // No worker has it from now on, so that another may run in its place. makes_room: one waits for that.
  void set_aside(uint64_t handle, bool& makes_room);
  // One that is handled goes to the next worker again. False: it is answered already.
  bool resume(uint64_t handle, Lane& lane);
  // Ends set_aside() for the thread that called it, which goes on with the handler: waits until fewer than
  // max_concurrency run, in turn with the calls that wait; no longer than until `ended`, of which wake_returning()
  // tells.
  void take_up(uint64_t handle, const std::atomic<bool>& ended);
  void wake_returning();
  void drop_waiting();

  bool has_takeable(Lane lane) const { return queue(lane).takeable.load() > 0; }
  size_t waiting();
  size_t waiting_or_running();

 private:
  struct Queue {
    explicit Queue(const WorkAllocator& allocator) : ready(allocator), held(allocator), backed_up(allocator) {}
    Turns ready;
    Turns held;                    // calls that take a stream, beyond what may be handled of these at a time
    Turns backed_up;               // of connections that are
    std::deque<uint64_t> resumed;  // of those running
    bool resumed_last = false;     // what was taken: the two go in turn
    size_t running = 0;            // not counting those set aside
    size_t max_concurrency = 0;
    std::atomic<size_t> takeable{0};  // as many as may run now

    size_t waiting() const { return ready.size() + held.size() + backed_up.size(); }
    size_t places() const { return max_concurrency - std::min(running, max_concurrency); }
    bool may_resume() const { return !resumed_last || ready.empty(); }
    void count() { takeable.store(std::min(resumed.size() + ready.size(), places())); }
  };

  // How many calls may wait: of those to the user's services in all, and of those to the built-in ones.
  struct Bound {
    size_t most = 0;
    Tally waiting;  // by connection; counted where there is a bound

    bool limits() const { return most != kUnlimited; }
    // Somebody has more waiting than this connection would have.
    bool may_displace(uint64_t connection) const {
      return limits() && waiting.most().first > waiting.of(connection) + 1;
    }
  };
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard library looks for this name
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  Queue& queue(Lane lane) { return queues_[static_cast<size_t>(lane)]; }
  const Queue& queue(Lane lane) const { return queues_[static_cast<size_t>(lane)]; }
  Lane lane_of(std::string_view method) const {
    const auto route = routes_.find(method);
    return route == routes_.end() ? others_.load() : route->second;
  }
  Bound& bound(Lane lane) { return lane == Lane::kBuiltin ? builtin_ : calls_; }
  void displace(Bound& bound);
  void wait_in(Queue& target, Work work);
  void no_longer_waits(const Work& work);
  WorkByKey::node_type take_ready(Queue& from);
  bool may_handle_stream(uint64_t connection) const;
  void stream_ended(const Work& work);
  bool take_resumed(Queue& from, Work& work);
  void give_place(Queue& from, Work& work);
  void let_return(Queue& from);
  size_t waiting_now() const;
  bool free_place(Queue& from);

  Recycler memory_of_works_;  // for what is below
  const std::string rate_text_;
  RateLimit rate_;
  const size_t streams_max_;
  const size_t streams_share_;  // of them, for one connection
  std::unordered_map<std::string, Lane, Hash, std::equal_to<>> routes_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::atomic<Lane> others_{Lane::kWorkers};
  std::array<Queue, kLanes.size()> queues_{Queue(WorkAllocator(memory_of_works_)),
                                           Queue(WorkAllocator(memory_of_works_)),
                                           Queue(WorkAllocator(memory_of_works_))};
  Bound calls_;
  Bound builtin_;
  Tally streams_;  // calls that take a stream: ready for a worker, or handled
  WorkByKey running_{WorkAllocator(memory_of_works_)};
  std::vector<uint64_t> displaced_;
  std::atomic<bool> has_displaced_{false};
  uint64_t next_handle_ = 1;
};

}  // namespace rrpc::driver
