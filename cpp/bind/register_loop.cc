// LoopQueue. The GIL is released while it polls, and taken only to hand over what has come.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/loop.h"
#include "bind/register.h"

namespace rrpc::bind {

void deliver(void* to, PyObject* target, const py::object& first, const py::object& second) {
  const py::object held = py::reinterpret_steal<py::object>(target);
  const py::tuple entry = py::make_tuple(held, first, second);
  if (PyList_Append(static_cast<PyObject*>(to), entry.ptr()) != 0) throw py::error_already_set();
}

LoopTarget::~LoopTarget() {
  if (target_ != nullptr) defer_release(target_);
}

void PyLoopCall::deliver(void* to) {
  stamps.mark(&rpc::CallStamps::taken);
  if (!status().ok()) {
    const py::object error = error_of(status(), {details(), metadata(), not_executed()});
    return bind::deliver(to, target_.take(), py::none(), error);
  }
  bind::deliver(to, target_.take(), bytes_of(as_text(payload())), wrap_blocks(blocks()));
}

void PyLoopNews::deliver(void* to, const py::object& first) {
  PyObject* const target = target_.get();
  if (target == nullptr) return;
  Py_INCREF(target);
  bind::deliver(to, target, first, py::none());
}

PyLoopQueue::PyLoopQueue()
    : queue_(new driver::LoopQueue, [](driver::LoopQueue* dying) {
        if (!dying->belongs_to_parent()) delete dying;  // else its locks may be held for ever
      }) {
  if (queue_->fd() < 0)
    raise_status(resource_exhausted("no file descriptors left for an event loop; raise 'ulimit -n'"));
}

std::optional<py::list> PyLoopQueue::poll() {
  if (queue_->belongs_to_parent()) return std::nullopt;
  std::vector<driver::LoopItemRef> items;
  bool awake = false;
  {
    const WithoutGil freed;
    awake = queue_->poll(items);
  }
  run_deferred();
  // A callback may have begun a call meanwhile, for which the loop must be polled.
  if (!awake && queue_->resting()) return std::nullopt;
  py::list list;
  for (const driver::LoopItemRef& item : items) {
    try {
      item->deliver(list.ptr());
    } catch (py::error_already_set& error) {  // the others must not be lost with it
      error.discard_as_unraisable("rrpc._core.LoopQueue.poll");
    }
  }
  return list;
}

void PyLoopQueue::close() {
  if (queue_->belongs_to_parent()) return;
  const WithoutGil freed;
  queue_->close();
}

void register_loop(py::module_& module) {
  py::class_<PyLoopQueue>(module, "LoopQueue")
      .def(py::init<>())
      .def("fileno", &PyLoopQueue::fileno)
      .def("poll", &PyLoopQueue::poll)
      .def("close", &PyLoopQueue::close);
}

}  // namespace rrpc::bind
