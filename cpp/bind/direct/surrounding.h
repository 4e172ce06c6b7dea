// What surrounds a caller or a handler in Python: the context variable of rrpc/_call/context.py, and the event loop.
// These files use CPython's API itself, not pybind11's wrappers, because they run once in every call.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// The context variable, and the class Context that is made of a CurrentCall when a handler asks. Once, at import.
void set_context(py::object variable, py::object context_class);
PyObject* context_variable();  // borrowed

// The call that a handler runs for, in the context variable: no more than what a Context is made of. Threads that the
// handler starts may have it too: what changes is atomic.
struct CurrentCall {
  PyObject_HEAD;
  PyObject* core;  // of the server
  PyObject* name;
  PyObject* metadata;
  std::atomic<PyObject*> context;  // null until it is asked for
  PyObject* task;                  // that the handler runs in, or null
  uint64_t handle;
  TimeNs deadline;
  std::atomic<bool> ended;  // the call is answered, or about to be
};
PyTypeObject* make_current_call_type();
// With nothing in it but its reference.
CurrentCall& make_current_call();
// Takes the owner's reference of one whose call has been answered. Gives it back empty where nobody else has it, so
// that it can be another call's; else null.
CurrentCall* recycled(CurrentCall* call);
// Throws what Python raised.
py::object context_of(CurrentCall& call);
// The call is answered, or about to be. Throws what Python raised.
void end(CurrentCall& call);

// Whether calls that are made here inherit something of a handler's call, which runs.
bool in_handler();
// Whether an event loop runs in this thread.
bool loop_runs();
// The drivers of event loops, as rrpc/aio/loop_driver.py keeps them. Once, at its import.
void set_loop_drivers(py::dict drivers);
// The driver of the loop that runs in this thread, a LoopDriver; empty where there is none yet.
py::object running_driver();

// For Python: 0 behind the deadline.
inline double seconds_left(TimeNs deadline) {
  return static_cast<double>(std::max<TimeNs>(deadline - now_ns(), 0)) / kSecond;
}

}  // namespace rrpc::bind::direct
