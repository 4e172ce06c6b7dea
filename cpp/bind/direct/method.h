// Calls of a client's method without Python between the caller's arguments and the wire, and back.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bind/plan/compiled_plan.h"
#include "driver/client.h"

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

  py::object connection;
  py::object core;                                          // its Client
  const std::shared_ptr<driver::Client>* client = nullptr;  // in the Client, where it is null once that is closed
  py::bytes name;                                           // on the wire
};

}  // namespace rrpc::bind::direct
