// LoopDriver. The GIL is released while it polls, and taken only to hand over what has come.
#include <pybind11/pybind11.h>

#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/loop.h"
#include "bind/plan/python.h"
#include "bind/register.h"

namespace rrpc::bind {
namespace {

// While nobody else is ready to run, the loop is kept from going round, which costs it 10 µs, for so long.
constexpr TimeNs kRound = 500 * kMicrosecond;
// Of tasks that what came has woken: others have their turn after so long. As in rrpc/aio/fairness.py.
constexpr TimeNs kTurnMax = 2 * kMillisecond;

PyObject *g_arrived = nullptr, *g_call_soon = nullptr, *g_get_debug = nullptr, *g_with_context = nullptr;

void arrive(const py::object& target, const py::object& first, const py::object& second) {
  const auto done = py::reinterpret_steal<py::object>(call_python(
      [&] { return PyObject_CallMethodObjArgs(target.ptr(), g_arrived, first.ptr(), second.ptr(), nullptr); }));
  if (!done) throw py::error_already_set();
}

PyObject* poll_callback(PyObject* self, PyObject*) {
  try {
    py::cast<PyLoopDriver&>(py::handle(self)).poll();
    return Py_NewRef(Py_None);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef g_poll = {"poll", poll_callback, METH_NOARGS, "Polls for what the loop awaits and hands over what comes."};

bool is_debugging(const py::object& loop) {
  const auto debug = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(loop.ptr(), g_get_debug));
  if (!debug) throw py::error_already_set();
  return debug.ptr() == Py_True;
}

}  // namespace

LoopTarget::~LoopTarget() {
  if (target_ != nullptr) defer_release(target_);
}

void PyLoopCall::deliver(void*) {
  stamps.mark(&rpc::CallStamps::taken);
  const py::object target = target_.take();
  if (!target) return;
  if (!status().ok()) return arrive(target, py::none(), error_of(status(), {details(), metadata(), not_executed()}));
  arrive(target, bytes_of(as_text(payload())), wrap_blocks(blocks()));
}

void PyLoopNews::deliver(const py::object& first) {
  py::object target;
  {
    const std::lock_guard lock(latch_);
    target = py::reinterpret_borrow<py::object>(target_.get());
  }
  if (target) arrive(target, first, py::none());
}

void PyLoopNews::forget() {
  py::object target;  // which may go with it, without the latch
  const std::lock_guard lock(latch_);
  target = target_.take();
}

PyLoopDriver::PyLoopDriver(py::object loop)
    : loop_(std::move(loop)),
      context_(py::reinterpret_steal<py::object>(PyContext_New())),
      queue_(new driver::LoopQueue, [](driver::LoopQueue* dying) {
        if (!dying->belongs_to_parent()) delete dying;  // else its locks may be held for ever
      }) {
  if (!context_) throw py::error_already_set();
  if (queue_->fd() < 0)
    raise_status(resource_exhausted("no file descriptors left for an event loop; raise 'ulimit -n'"));
  ready_ = py::reinterpret_steal<py::object>(PyObject_GetAttrString(loop_.ptr(), "_ready"));
  if (ready_ && PyObject_Size(ready_.ptr()) < 0) ready_ = py::object();
  PyErr_Clear();
}

void PyLoopDriver::poll_soon() {
  if (std::exchange(polling_, true)) return;
  call_poll_soon();
}

void PyLoopDriver::call_poll_soon() {
  if (self_ == nullptr) self_ = py::cast(this, py::return_value_policy::reference).ptr();
  const auto callback = py::reinterpret_steal<py::object>(PyCFunction_New(&g_poll, self_));
  if (!callback) throw py::error_already_set();
  PyObject* const arguments[] = {loop_.ptr(), callback.ptr(), context_.ptr()};
  const auto handle =
      py::reinterpret_steal<py::object>(PyObject_VectorcallMethod(g_call_soon, arguments, 2, g_with_context));
  if (!handle) throw py::error_already_set();
}

// The callback's own place among those that are ready is taken before anything runs that may run the loop itself,
// where the loop shows who is ready. Elsewhere it is taken last: those woken by what came come first, so that what they
// begin is polled for too.
void PyLoopDriver::poll() {
  if (queue_->belongs_to_parent()) return;
  const bool at_once = sees_ready() && !is_debugging(loop_);
  const bool awake = take(!sees_ready() || PyObject_Size(ready_.ptr()) == 0);
  if (!awake && arrived_.empty()) {
    polling_ = false;
    return;
  }
  const bool before = std::exchange(delivering_, at_once);
  if (at_once) call_poll_soon();
  round_end_ = at_once ? now_ns() + kRound : 0;
  try {
    do deliver();
    while (at_once && arrived_.empty() && !others_are_ready() && now_ns() < round_end_ && take(true) &&
           !arrived_.empty());
  } catch (...) {
    delivering_ = before;
    if (!at_once) call_poll_soon();
    throw;
  }
  delivering_ = before;
  if (!at_once) call_poll_soon();
}

// False where there is nothing to poll for.
bool PyLoopDriver::take(bool patient) {
  std::vector<driver::LoopItemRef> items;
  bool awake = false;
  {
    const WithoutGil freed;
    awake = queue_->poll(items, patient);
  }
  run_deferred();
  for (driver::LoopItemRef& item : items) arrived_.push_back(std::move(item));
  // A callback may have begun a call meanwhile, for which the loop must be polled.
  return awake || !queue_->resting();
}

void PyLoopDriver::deliver() {
  const TimeNs end = now_ns() + kTurnMax;
  while (!arrived_.empty() && now_ns() < end) {
    const driver::LoopItemRef item = std::move(arrived_.front());
    arrived_.pop_front();
    try {
      item->deliver(this);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;  // the others are delivered if the loop goes on
      report(error);
    }
  }
}

void PyLoopDriver::report(py::error_already_set& error) {
  py::dict told;
  told["message"] = "rrpc: what arrived was refused";
  told["exception"] = error.value();
  loop_.attr("call_exception_handler")(told);
}

bool PyLoopDriver::others_are_ready() const { return PyObject_Size(ready_.ptr()) > (polling_ ? 1 : 0); }

bool PyLoopDriver::may_wait_here() const {
  return sees_ready() && arrived_.empty() && queue_->awaited() == 0 && !others_are_ready() && now_ns() < round_end_;
}

bool PyLoopDriver::wait_here(const driver::LoopItem& mine) {
  bool came = false;
  std::vector<driver::LoopItemRef> items;
  for (int i = 0; i < 2 && !came; ++i) {
    queue_->poll(items);
    for (driver::LoopItemRef& item : items) {
      if (item.get() == &mine)
        came = true;
      else
        arrived_.push_back(std::move(item));
    }
    items.clear();
  }
  return came;
}

void PyLoopDriver::wake(PyObject* callback, PyObject* argument, PyObject* context) {
  if (!delivering_ || PyContext_Enter(context) != 0) {
    PyErr_Clear();
    return wake_soon(callback, argument, context);
  }
  const auto done =
      py::reinterpret_steal<py::object>(call_python([&] { return PyObject_CallOneArg(callback, argument); }));
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const bool left = PyContext_Exit(context) == 0;
  if (!left && type == nullptr) throw py::error_already_set();
  if (!left) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  if (!done) throw py::error_already_set();
}

void PyLoopDriver::wake_soon(PyObject* callback, PyObject* argument, PyObject* context) {
  PyObject* const arguments[] = {loop_.ptr(), callback, argument, context};
  const auto handle =
      py::reinterpret_steal<py::object>(PyObject_VectorcallMethod(g_call_soon, arguments, 3, g_with_context));
  if (!handle) throw py::error_already_set();
}

void PyLoopDriver::close() {
  if (queue_->belongs_to_parent()) return;
  const WithoutGil freed;
  queue_->close();
}

int PyLoopDriver::traverse(visitproc visit, void* arg) const {
  Py_VISIT(loop_.ptr());
  Py_VISIT(ready_.ptr());
  Py_VISIT(context_.ptr());
  return 0;
}

void PyLoopDriver::clear() {
  loop_ = py::none();
  context_ = py::none();
  ready_ = py::object();
}

namespace {

int traverse_driver(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const auto* const driver = held_by<PyLoopDriver>(self);
  return driver == nullptr ? 0 : driver->traverse(visit, arg);
}

int clear_driver(PyObject* self) {
  if (auto* const driver = held_by<PyLoopDriver>(self)) driver->clear();
  return 0;
}

}  // namespace

void register_loop(py::module_& module) {
  g_arrived = PyUnicode_InternFromString("arrived");
  g_call_soon = PyUnicode_InternFromString("call_soon");
  g_get_debug = PyUnicode_InternFromString("get_debug");
  g_with_context = py::make_tuple("context").release().ptr();
  py::class_<PyLoopDriver>(module, "LoopDriver", py::custom_type_setup([](PyHeapTypeObject* heap_type) {
                             PyTypeObject& collected = heap_type->ht_type;
                             collected.tp_flags |= Py_TPFLAGS_HAVE_GC;
                             collected.tp_traverse = traverse_driver;
                             collected.tp_clear = clear_driver;
                           }))
      .def(py::init<py::object>(), py::arg("loop"))
      .def_property_readonly("loop", &PyLoopDriver::loop)
      .def("fileno", &PyLoopDriver::fileno)
      .def("poll_soon", &PyLoopDriver::poll_soon)
      .def("close", &PyLoopDriver::close);
}

}  // namespace rrpc::bind
