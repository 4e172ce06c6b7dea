// The streams of a call as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bind/loop.h"
#include "bind/plan/threads.h"
#include "driver/client.h"
#include "driver/item_pace.h"
#include "driver/stream.h"

namespace rrpc::bind::plan {
struct CompiledPlan;
}

namespace rrpc::bind {

// register_client.cc: True when done, false at the deadline. Signals and deferred Python work are seen to meanwhile.
bool wait_for(driver::Client& client, const rpc::ClientCallRef& call, TimeNs deadline);
// Ctrl-C: the caller goes, so the call does.
void interrupt(driver::Client& client, const rpc::ClientCallRef& call);
// A signal that has come meanwhile would be raised before anybody has the call to end it.
void end_if_interrupted(driver::Client& client, const rpc::ClientCallRef& call);
// Raises the call's error, if it has one.
py::tuple take_reply(rpc::ClientCall& call);

class PyStream {
 public:
  // Of the calling end.
  PyStream(std::shared_ptr<driver::Client> client, std::unique_ptr<driver::Stream> stream)
      : client_(std::move(client)), stream_(std::move(stream)) {}
  // Of the answering end; the server outlives it.
  PyStream(std::function<Status()> park, std::unique_ptr<driver::Stream> stream)
      : park_(std::move(park)), stream_(std::move(stream)) {}
  ~PyStream();
  PyStream(const PyStream&) = delete;
  PyStream& operator=(const PyStream&) = delete;

  void send(const py::bytes& payload, py::handle buffers, py::handle timeout);
  bool try_send(const py::bytes& payload, py::handle buffers);
  void finish();
  // Sends the items of an iterator by a plan: waits for room if there is no slice of time. Gives None at the
  // iterator's end, (item,) for one that the plan leaves to Python, (payload, buffers) for one that there is no room
  // for, () at the slice's end.
  py::object send_each(py::handle source, const plan::CompiledPlan& plan, py::handle slice_s);
  py::list receive(size_t count, py::handle timeout);
  // (values, whether some of them are Unread, whether some had buffers)
  py::tuple receive_values(const plan::CompiledPlan& plan, size_t count, py::handle timeout);
  py::object try_receive(size_t count);
  void send_initial_metadata(const py::bytes& metadata);
  py::object initial_metadata();
  py::tuple result(py::handle timeout);
  py::bytes metadata() const;
  bool done() const { return call() != nullptr ? call()->done() : stream_->ended(); }
  void cancel();
  void park();
  uint32_t ask_delivered();
  bool delivered(uint32_t sequence);
  void wait_delivered(py::handle timeout);
  bool peer_finished();
  bool answered();
  py::tuple addresses();
  void on_end(py::object callback);
  void land_in(py::object allocate);
  void notify(const PyLoopDriver& driver, py::object target, rpc::Awaited what);

 private:
  using Outcome = driver::Stream::Outcome;

  const rpc::ClientCallRef& call() const { return stream_->call(); }
  void check_process() const;
  [[noreturn]] void raise(const Status& failure) const;
  void see_to_deferred(bool waits);
  // `more`: as for driver::Stream::try_send().
  Outcome send_patiently(rpc::OutgoingItem& item, bool waits, TimeNs deadline, bool more = false);
  void give_memory();
  py::object allocator() const;
  std::vector<rpc::Item> take_items(size_t count, py::handle timeout);
  py::object buffers_of(rpc::Item& item) const;
  py::list give(std::vector<rpc::Item>& items) const;
  Outcome receive_patiently(size_t count, std::vector<rpc::Item>& items, bool waits, TimeNs deadline);

  const std::shared_ptr<driver::Client> client_;
  const std::function<Status()> park_;
  const std::unique_ptr<driver::Stream> stream_;
  driver::ItemPace pace_;  // of send_each()
  std::unique_ptr<py::tuple> taken_;
  mutable Latch latch_;
  py::object allocate_;                 // guarded by the latch
  std::recursive_mutex giving_memory_;  // taken without the GIL; allocate() runs with it
};

}  // namespace rrpc::bind
