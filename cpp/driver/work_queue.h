// A server's calls: those that wait to be handled, and those that are. Each goes down one of two lanes: to the workers,
// or to an event loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "driver/connection.h"

namespace rrpc::driver {

enum class Lane : uint8_t { kWorkers, kLoop };

struct Work {
  uint64_t handle = 0;
  ConnectionRef connection;
  rpc::ServerCallRef call;
  TimeNs taken_at = 0;
  Lane lane = Lane::kWorkers;
  bool resumed = false;  // one that was parked
  bool aside = false;    // no worker has it
};

inline Status unknown_handle(uint64_t handle) {
  return {StatusCode::kNotFound, "call handle " + std::to_string(handle) + " is unknown or was answered already"};
}

class WorkQueue {
 public:
  explicit WorkQueue(const Options& options);

  // Calls of these methods, by name or id, go to the loop, which handles so many of them at a time. Before the first.
  void route_to_loop(const std::vector<std::string>& methods, uint32_t max_concurrency);

  // Why a call would be refused, whatever its method.
  Status why_full();
  // The call waits from now on; the lane it went to, or why there is no room.
  Result<Lane> add(const ConnectionRef& connection, const rpc::ServerCallRef& call);
  // False: it is handled already, or isn't known.
  bool take_back(const rpc::ServerCallRef& call);
  // The next to handle, if its lane may have one more.
  bool take(Lane lane, Work& work);
  bool find(uint64_t handle, Work& work);
  // It is answered, once. makes_room: one that waited may take its place.
  bool end(uint64_t handle, Work& work, bool& makes_room);
  // No worker has it from now on, so that another may run in its place. makes_room: one waits for that.
  void set_aside(uint64_t handle, bool& makes_room);
  // One that is handled goes to the next worker again. False: it is answered already.
  bool resume(uint64_t handle, Lane& lane);
  void drop_waiting();

  bool has_takeable(Lane lane) const { return queue(lane).takeable.load() > 0; }
  size_t waiting();
  size_t waiting_or_running();

 private:
  using WorkByHandle = std::map<uint64_t, Work>;
  struct Queue {
    WorkByHandle ready;            // handles rise, so the oldest call is the first
    std::deque<uint64_t> resumed;  // of those running
    bool resumed_last = false;     // what was taken: the two go in turn
    size_t running = 0;            // not counting those set aside
    size_t max_concurrency = 0;
    std::atomic<size_t> takeable{0};  // of ready, as many as may run now

    size_t startable() const { return std::min(ready.size(), max_concurrency - std::min(running, max_concurrency)); }
    bool makes_room() const { return running >= max_concurrency && !ready.empty(); }  // when one of those running ends
    void count() { takeable.store(resumed.size() + startable()); }
  };

  Queue& queue(Lane lane) { return lane == Lane::kLoop ? loop_ : workers_; }
  const Queue& queue(Lane lane) const { return lane == Lane::kLoop ? loop_ : workers_; }
  bool take_resumed(Queue& from, Work& work);
  Status no_room() const;

  const size_t max_queue_;
  std::unordered_set<std::string> loop_methods_;
  std::mutex mutex_;
  Queue workers_;
  Queue loop_;
  WorkByHandle running_;
  uint64_t next_handle_ = 1;
};

}  // namespace rrpc::driver
