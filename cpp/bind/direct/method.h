// Calls of a client's method without Python between the caller's arguments and the wire, and back.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>

#include "base/clock.h"
#include "bind/plan/compiled_plan.h"
#include "bind/plan/threads.h"
#include "bind/share.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// What calls of one method of one client need. Its stub, in Python, binds it to the connection that calls take; where
// that isn't the channel's own any more, the next call goes through the stub, which binds it again.
struct MethodBinding {
  std::shared_ptr<const plan::CompiledPlan> plan;
  py::tuple names;     // of the arguments, interned; None where it is given by its place only
  py::tuple defaults;  // ... where there is none
  size_t positional = 0;
  py::object options;  // of a call, that the method takes: timeout, metadata, out
  py::object channel;
  TimeNs timeout = kNever;  // of a call that gives none
  py::bytes metadata;

  // What binding sets, which the latch guards. Calls are begun by any number of threads while the stub binds it again.
  mutable Latch latch;
  py::object connection;
  py::object core;                     // its Client
  const ClientSlot* client = nullptr;  // in the Client
  py::bytes name;                      // on the wire
};

// A client's method: called in the place of the stub, to which it leaves what isn't plain.
struct DirectMethod {
  PyObject_HEAD;
  vectorcallfunc vectorcall;
  PyObject* stub;
  PyObject* binding_owner;
  MethodBinding* binding;
  PyObject* weak_references;
  bool in_loop;                      // its calls are awaited
  std::atomic<bool> start_is_stubs;  // or somebody's own, which the stub has
};

}  // namespace rrpc::bind::direct
