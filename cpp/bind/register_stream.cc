// Stream. A small item for which there is room goes, and items that are here are taken, with the GIL held: that takes
// less than to let go of it, and waits for nothing. For everything else it is released.
#include "bind/stream.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/plan/compiled_plan.h"
#include "bind/register.h"

namespace rrpc::bind {
namespace {

using driver::WaitResult;

endpoint::Buffer allocated(const py::object& allocate, size_t length_bytes) {
  const py::object given = allocate(length_bytes);
  const py::object view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(given.ptr()));
  if (!view) throw py::error_already_set();
  endpoint::Buffer buffer = export_buffer(view.attr("cast")("B"), true);
  if (buffer.length_bytes != length_bytes)
    raise_status(invalid_argument("allocate(" + std::to_string(length_bytes) + ") gave " +
                                  std::to_string(buffer.length_bytes) + " bytes"));
  return buffer;
}

// The memoryviews of memory that the user gave.
py::object memory_of(const rpc::Item& item) {
  py::list list(item.memory().size());
  for (size_t i = 0; i < item.memory().size(); ++i) list[i] = exporter_of(*item.memory()[i].hold);
  return list;
}

// Of an item that was fetched before the user said where to.
py::object copied(const std::vector<endpoint::ReceivedBlock>& blocks, const py::object& allocate) {
  py::list list(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const endpoint::Buffer buffer = allocated(allocate, blocks[i].size());
    std::copy_n(blocks[i].data(), blocks[i].size(), buffer.data);
    list[i] = exporter_of(*buffer.hold);
  }
  return list;
}

[[noreturn]] void raise_timeout(const char* text) {
  PyErr_SetString(PyExc_TimeoutError, text);
  throw py::error_already_set();
}

}  // namespace

py::object PyStream::buffers_of(rpc::Item& item) const {
  if (!item.memory().empty()) return memory_of(item);
  if (item.blocks().empty()) return py::none();
  if (const py::object allocate = allocator(); allocate) return copied(item.blocks(), allocate);
  std::vector<endpoint::ReceivedBlock> blocks = item.take_blocks();
  return wrap_blocks(blocks);
}

py::object PyStream::allocator() const {
  const std::lock_guard lock(latch_);
  return allocate_;
}

py::list PyStream::give(std::vector<rpc::Item>& items) const {
  py::list list(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    py::object blocks = buffers_of(items[i]);
    const Bytes payload = items[i].payload();
    PyObject* pair = PyTuple_New(2);
    PyObject* bytes = bytes_of(as_text(payload)).release().ptr();
    if (pair == nullptr) throw py::error_already_set();
    PyTuple_SET_ITEM(pair, 0, bytes);
    PyTuple_SET_ITEM(pair, 1, blocks.release().ptr());
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), pair);
  }
  return list;
}

PyStream::~PyStream() {
  if (call() == nullptr || call()->done() || stream_->belongs_to_parent()) return;
  const WithoutGil freed;
  stream_->cancel(cancelled("the stream was dropped by its caller"));
}

void PyStream::check_process() const {
  if (stream_->belongs_to_parent())
    raise_status(failed_precondition("this stream belongs to the parent process; connect again after fork"));
}

void PyStream::raise(const Status& failure) const {
  if (call() != nullptr && call()->done() && !call()->status().ok()) take_reply(*call());
  raise_status(failure);
}

void PyStream::see_to_deferred(bool waits) {
  if (waits)
    run_deferred();
  else
    release_deferred(stream_->engine());
}

PyStream::Outcome PyStream::send_patiently(rpc::OutgoingItem& item, bool waits, TimeNs deadline, bool more) {
  while (true) {
    Status failure;
    Outcome outcome = Outcome::kDone;
    WaitResult waited = WaitResult::kDone;
    {
      const WithoutGil freed;
      outcome = stream_->try_send(item, true, failure, more);
      if (waits && outcome == Outcome::kNotYet) waited = stream_->wait_for_room(deadline, g_deferred_pending);
    }
    check_signals(waited == WaitResult::kInterrupted, stream_->engine());
    see_to_deferred(waits);
    if (outcome == Outcome::kFailed) raise(failure);
    if (outcome == Outcome::kDone || !waits || waited == WaitResult::kTimeout) return outcome;
  }
}

PyStream::Outcome PyStream::receive_patiently(size_t count, std::vector<rpc::Item>& items, bool waits,
                                              TimeNs deadline) {
  while (true) {
    Status failure;
    Outcome outcome = Outcome::kDone;
    WaitResult waited = WaitResult::kDone;
    {
      const WithoutGil freed;
      outcome = stream_->try_receive(count, items, true, failure);
      if (waits && outcome == Outcome::kNotYet) waited = stream_->wait_for_items(deadline, g_deferred_pending);
    }
    check_signals(waited == WaitResult::kInterrupted, stream_->engine());
    see_to_deferred(waits);
    if (outcome == Outcome::kFailed) raise(failure);
    if (outcome != Outcome::kNotYet || !waits || waited == WaitResult::kTimeout) return outcome;
  }
}

void PyStream::send(const py::bytes& payload, py::handle buffers, py::handle timeout) {
  rpc::OutgoingItem item{bytes_view(payload), export_buffers(buffers)};
  Status failure;
  if (stream_->try_send(item, false, failure) == Outcome::kDone) return;
  if (send_patiently(item, true, deadline_from(timeout)) != Outcome::kDone)
    raise_timeout("the other end made no room for the item in time");
}

bool PyStream::try_send(const py::bytes& payload, py::handle buffers) {
  rpc::OutgoingItem item{bytes_view(payload), export_buffers(buffers)};
  Status failure;
  if (stream_->try_send(item, false, failure) == Outcome::kDone) return true;
  return send_patiently(item, false, kNever) == Outcome::kDone;
}

void PyStream::finish() {
  check_process();
  const WithoutGil freed;
  stream_->finish();
}

uint32_t PyStream::ask_delivered() {
  Result<uint32_t> sequence = 0u;
  {
    const WithoutGil freed;
    sequence = stream_->ask_delivered();
  }
  raise_if_error(sequence.status());
  return *sequence;
}

bool PyStream::delivered(uint32_t sequence) {
  Status failure;
  Outcome outcome = Outcome::kDone;
  {
    const WithoutGil freed;
    outcome = stream_->delivered(sequence, failure);
  }
  if (outcome == Outcome::kFailed) raise(failure);
  return outcome == Outcome::kDone;
}

void PyStream::wait_delivered(py::handle timeout) {
  const TimeNs deadline = deadline_from(timeout);
  const uint32_t sequence = ask_delivered();
  while (!delivered(sequence)) {
    WaitResult waited = WaitResult::kDone;
    {
      const WithoutGil freed;
      waited = stream_->wait_for_room(deadline, g_deferred_pending);
    }
    check_signals(waited == WaitResult::kInterrupted, stream_->engine());
    run_deferred();
    if (waited == WaitResult::kTimeout) raise_timeout("the other end didn't have all items in time");
  }
}

bool PyStream::peer_finished() {
  check_process();
  const WithoutGil freed;
  return stream_->peer_finished();
}

bool PyStream::answered() {
  check_process();
  const WithoutGil freed;
  return stream_->answered();
}

py::tuple PyStream::addresses() {
  check_process();
  std::pair<std::string, std::string> found;
  {
    const WithoutGil freed;
    found = stream_->addresses();
  }
  return py::make_tuple(text_of(found.first), text_of(found.second));
}

void PyStream::on_end(py::object callback) {
  check_process();
  std::function<void()> tell = deferred_callback(callback.release().ptr());
  {
    const WithoutGil freed;
    stream_->on_end([tell, engine = &stream_->engine()] {
      tell();
      engine->see_to_deferred();
    });
  }
}

// For the first item that waits for it, if one does.
void PyStream::give_memory() {
  std::unique_lock lock(giving_memory_, std::defer_lock);
  std::vector<size_t> lengths;
  {
    const WithoutGil freed;
    lock.lock();
    lengths = stream_->wanted();
  }
  std::vector<endpoint::Buffer> memory;
  const py::object allocate = allocator();
  for (const size_t length_bytes : lengths) memory.push_back(allocated(allocate, length_bytes));
  Status status;
  {
    const WithoutGil freed;
    status = stream_->land(std::move(memory));
  }
  raise_if_error(status);
}

py::list PyStream::receive(size_t count, py::handle timeout) {
  std::vector<rpc::Item> items = take_items(count, timeout);
  return give(items);
}

std::vector<rpc::Item> PyStream::take_items(size_t count, py::handle timeout) {
  std::vector<rpc::Item> items;
  Status failure;
  Outcome outcome = stream_->try_receive(count, items, false, failure);
  if (outcome == Outcome::kDone) return items;
  const TimeNs deadline = deadline_from(timeout);
  do {
    if (outcome == Outcome::kWantsMemory) give_memory();
    outcome = receive_patiently(count, items, true, deadline);
  } while (outcome == Outcome::kWantsMemory);
  if (outcome != Outcome::kDone) raise_timeout("no item came in time");
  return items;
}

py::object PyStream::try_receive(size_t count) {
  std::vector<rpc::Item> items;
  Status failure;
  Outcome outcome = stream_->try_receive(count, items, false, failure);
  if (outcome != Outcome::kDone) outcome = receive_patiently(count, items, false, kNever);
  while (outcome == Outcome::kWantsMemory) {
    give_memory();
    outcome = receive_patiently(count, items, false, kNever);
  }
  if (outcome != Outcome::kDone) return py::none();
  return give(items);
}

void PyStream::land_in(py::object allocate) {
  check_process();
  {
    const std::lock_guard lock(latch_);
    std::swap(allocate_, allocate);
  }
  const WithoutGil freed;
  stream_->land_by_hand();
}

void PyStream::send_initial_metadata(const py::bytes& metadata) {
  Status status;
  {
    const WithoutGil freed;
    status = stream_->send_initial_metadata(bytes_view(metadata));
  }
  raise_if_error(status);
}

py::object PyStream::initial_metadata() {
  check_process();
  std::optional<std::string> metadata;
  {
    const WithoutGil freed;
    metadata = stream_->initial_metadata();
  }
  return metadata ? py::object(bytes_of(*metadata)) : py::none();
}

py::tuple PyStream::result(py::handle timeout) {
  if (call() == nullptr) raise_status(failed_precondition("the answering end has no result to wait for"));
  if (!call()->done() && !wait_for(*client_, call(), deadline_from(timeout))) raise_timeout("the call is not done yet");
  if (taken_ == nullptr) taken_ = std::make_unique<py::tuple>(take_reply(*call()));
  return *taken_;
}

py::bytes PyStream::metadata() const {
  return bytes_of(call() != nullptr && call()->done() ? call()->metadata() : std::string());
}

void PyStream::cancel() {
  {
    const WithoutGil freed;
    stream_->cancel(cancelled("the call was cancelled by its caller"));
  }
  release_deferred(stream_->engine());
}

void PyStream::park() {
  if (!park_) raise_status(failed_precondition("only a server's streams can be parked"));
  check_process();
  Status status;
  {
    const WithoutGil freed;
    status = park_();
  }
  raise_if_error(status);
}

void PyStream::notify(const PyLoopDriver& driver, py::object target, rpc::Awaited what) {
  check_process();
  const auto news = std::make_shared<PyLoopNews>(std::move(target));
  const WithoutGil freed;
  stream_->notify(driver.queue(), news, what);
}

void register_stream(py::module_& module) {
  register_stream_items(module);
  using rpc::Awaited;
  py::enum_<Awaited>(module, "Awaited")
      .value("ROOM", Awaited::kRoom)
      .value("ITEMS", Awaited::kItems)
      .value("DELIVERY", Awaited::kDelivery)
      .value("END", Awaited::kEnd);
  py::class_<PyStream>(module, "Stream")
      .def("send", &PyStream::send, py::arg("payload"), py::arg("buffers") = py::none(),
           py::arg("timeout") = py::none())
      .def("try_send", &PyStream::try_send, py::arg("payload"), py::arg("buffers") = py::none())
      .def("finish", &PyStream::finish)
      .def("send_each", &PyStream::send_each, py::arg("source"), py::arg("plan"), py::arg("slice_s") = py::none())
      .def("receive_values", &PyStream::receive_values, py::arg("plan"), py::arg("count") = 1,
           py::arg("timeout") = py::none())
      .def("receive", &PyStream::receive, py::arg("count") = 1, py::arg("timeout") = py::none())
      .def("try_receive", &PyStream::try_receive, py::arg("count") = 1)
      .def("land_in", &PyStream::land_in, py::arg("allocate"))
      .def("send_initial_metadata", &PyStream::send_initial_metadata, py::arg("metadata"))
      .def("initial_metadata", &PyStream::initial_metadata)
      .def("result", alone(&PyStream::result), py::arg("timeout") = py::none())
      .def("metadata", &PyStream::metadata)
      .def("done", &PyStream::done)
      .def("cancel", &PyStream::cancel)
      .def("ask_delivered", &PyStream::ask_delivered)
      .def("delivered", &PyStream::delivered, py::arg("sequence"))
      .def("wait_delivered", &PyStream::wait_delivered, py::arg("timeout") = py::none())
      .def("peer_finished", &PyStream::peer_finished)
      .def("answered", &PyStream::answered)
      .def("addresses", &PyStream::addresses)
      .def("on_end", &PyStream::on_end, py::arg("callback"))
      .def("park", &PyStream::park)
      .def("notify", &PyStream::notify, py::arg("driver"), py::arg("target"), py::arg("what"));
}

}  // namespace rrpc::bind
