// The base of rrpc.Future in C++: a call that was begun directly is waited for, and its result read, without Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "base/clock.h"
#include "bind/plan/compiled_plan.h"
#include "driver/client.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// What a call was begun with, for its result and for Python, which gets it if more is asked for than a result.
struct Begun {
  std::shared_ptr<driver::Client> client;
  rpc::ClientCallRef call;
  std::shared_ptr<const plan::CompiledPlan> plan;
  plan::Sizes sizes;
  TimeNs deadline = kNever;
  py::object stub;
  py::tuple arguments;
  py::object metadata;
};

// A new rrpc.Future. Throws what Python raised.
py::object make_future(Begun begun);

}  // namespace rrpc::bind::direct
