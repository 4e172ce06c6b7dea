// A server's calls with streams: what their handlers use, and those whose worker has let go of them.
#include "driver/server.h"

namespace rrpc::driver {

Result<std::unique_ptr<Stream>> Server::stream(uint64_t handle) {
  Work work;
  if (!find(handle, work)) return unknown_handle(handle);
  if (work.call->stream() == nullptr) return failed_precondition("the call has no streams");
  return std::make_unique<Stream>(work.connection->engine->shared_from_this(), work.connection, work.call->stream(),
                                  work.call->deadline());
}

Status Server::park(uint64_t handle) {
  Work work;
  if (!find(handle, work)) return unknown_handle(handle);
  const rpc::StreamRef& stream = work.call->stream();
  if (stream == nullptr) return failed_precondition("the call has no streams");
  set_aside(work);
  {
    std::lock_guard lock(work.connection->mutex);
    if (!stream->has_come(rpc::Awaited::kRoom)) {
      stream->parked_as = handle;
      return {};
    }
  }
  Lane lane = Lane::kWorkers;
  if (work_.resume(handle, lane) && in_loop_) announce(lane);  // else the worker that parks it looks for work next
  return {};
}

Status Server::set_aside(uint64_t handle) {
  Work work;
  if (!find(handle, work)) return unknown_handle(handle);
  set_aside(work);
  return {};
}

Status Server::lend(uint64_t handle) {
  Work work;
  if (!find(handle, work)) return unknown_handle(handle);
  bool makes_room = false;
  work_.set_aside(handle, makes_room);
  if (makes_room) announce(work.lane);
  return {};
}

// Whoever calls this takes the next call itself, unless that is an event loop's.
void Server::set_aside(const Work& work) {
  bool makes_room = false;
  work_.set_aside(work.handle, makes_room);
  if (makes_room && is_loops(work.lane)) tell_loop();
}

void Server::bring_back(uint64_t handle) {
  resume(handle);
  if (!in_loop_) engine().wake_one_worker();
}

// Maybe with a connection's mutex.
void Server::resume(uint64_t handle) {
  Lane lane = Lane::kWorkers;
  if (work_.resume(handle, lane)) announce(lane);
}

}  // namespace rrpc::driver
