// A client's plain call before and after its time on the wire: the caller's arguments, the request, and its result.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <optional>

#include "bind/direct/method.h"
#include "bind/metadata.h"
#include "driver/client.h"

namespace rrpc::bind::direct {

// A call's arguments in the order of the parameters; borrowed.
struct Given {
  std::array<PyObject*, plan::kArgumentsMax> values{};
  TimeNs timeout = kNever;
  PyObject* metadata = Py_None;
};

// False: the stub is to see to it, or to say what is wrong.
bool take_arguments(const MethodBinding& binding, PyObject* const* args, size_t count, PyObject* keywords,
                    Given& given);
py::tuple tuple_of(const Given& given, size_t count);

// A call that is to be begun.
struct Prepared {
  TimeNs deadline = kNever;
  plan::Packed packed;
  plan::Sizes sizes;
  std::shared_ptr<driver::Client> client;  // kept, as is the plan, whatever others do without the GIL
  std::shared_ptr<const plan::CompiledPlan> plan;
  py::bytes name;
  std::optional<PackedMetadata> metadata;
};

// Whether the stub has bound it to a connection, which may have ended since.
bool is_bound(const MethodBinding& binding);
// False: the stub is to make the call.
bool prepare(const MethodBinding& binding, const Given& given, Prepared& prepared);
rpc::CallRequest request_of(const Prepared& prepared);

// Names of the stub's methods, interned.
struct StubNames {
  PyObject *otherwise, *start_otherwise, *decode, *start;
};
extern StubNames g_stub_names;

// Has the stub make the call elsewhere, where that is right, or raise the error as the method declares it: calls the
// stub's method `how`.
PyObject* otherwise(PyObject* stub, PyObject* how, const py::object& error, const py::tuple& arguments, TimeNs deadline,
                    PyObject* metadata);
// The error of a call that has failed, or couldn't be begun.
py::object error_of(const rpc::ClientCall& call, const Status& begun);
// Reads the result of a call that has succeeded; the stub does where the plan leaves it to Python.
PyObject* result_of(PyObject* stub, const plan::CompiledPlan& plan, rpc::ClientCall& call, const Given& given,
                    plan::Sizes& sizes);

void make_outgoing_names();

}  // namespace rrpc::bind::direct
