#include "bind/direct/outgoing.h"

#include <utility>

#include "bind/convert.h"
#include "bind/direct/surrounding.h"
#include "bind/plan/python.h"

namespace rrpc::bind::direct {

StubNames g_stub_names;

namespace {

constexpr double kShortestTimeoutS = 1e-6;  // as in rrpc/_options.py

PyObject *g_ready = nullptr, *g_timeout = nullptr, *g_metadata = nullptr, *g_out = nullptr;  // interned names

// False: the stub is to see to it, or to say what is wrong.
bool take_timeout(PyObject* given, TimeNs& timeout) {
  if (!PyFloat_CheckExact(given)) return false;
  const double seconds = PyFloat_AS_DOUBLE(given);
  if (!(seconds >= kShortestTimeoutS && seconds < 1e9)) return false;
  timeout = static_cast<TimeNs>(seconds * 1e9);
  return true;
}

bool take_keyword(const MethodBinding& binding, PyObject* name, PyObject* value, Given& given) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(binding.names.ptr()); ++i) {
    if (PyTuple_GET_ITEM(binding.names.ptr(), i) != name) continue;
    PyObject*& place = given.values[static_cast<size_t>(i)];
    if (place != nullptr) return false;
    place = value;
    return true;
  }
  if (PySet_Contains(binding.options.ptr(), name) != 1) return false;
  if (name == g_timeout && value != Py_None) return take_timeout(value, given.timeout);
  if (name == g_metadata && PyDict_CheckExact(value) && PyBytes_GET_SIZE(binding.metadata.ptr()) == 0) {
    given.metadata = value;
    return true;
  }
  return value == Py_None && (name == g_timeout || name == g_metadata || name == g_out);
}

// Takes the client that calls of the method are made over. False: it isn't the channel's own any more, or closed.
bool take_client(const MethodBinding& binding, Prepared& prepared) {
  const auto ready = py::reinterpret_steal<py::object>(PyObject_GetAttr(binding.channel.ptr(), g_ready));
  if (!ready) PyErr_Clear();
  const std::lock_guard lock(binding.latch);
  if (binding.client == nullptr || !ready.is(binding.connection)) return false;
  prepared.client = binding.client->get();
  prepared.name = binding.name;
  return prepared.client != nullptr;
}

}  // namespace

bool take_arguments(const MethodBinding& binding, PyObject* const* args, size_t count, PyObject* keywords,
                    Given& given) {
  const size_t wanted = binding.plan->arguments.size();
  if (count > binding.positional) return false;
  for (size_t i = 0; i < count; ++i) given.values[i] = args[i];
  given.timeout = binding.timeout;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < named; ++i)
    if (!take_keyword(binding, PyTuple_GET_ITEM(keywords, i), args[count + static_cast<size_t>(i)], given))
      return false;
  for (size_t i = 0; i < wanted; ++i) {
    if (given.values[i] != nullptr) continue;
    given.values[i] = PyTuple_GET_ITEM(binding.defaults.ptr(), static_cast<Py_ssize_t>(i));
    if (given.values[i] == Py_Ellipsis) return false;
  }
  return true;
}

py::tuple tuple_of(const Given& given, size_t count) {
  py::tuple arguments(count);
  for (size_t i = 0; i < count; ++i) arguments[i] = py::handle(given.values[i]);
  return arguments;
}

bool is_bound(const MethodBinding& binding) {
  const std::lock_guard lock(binding.latch);
  return binding.client != nullptr;
}

bool prepare(const MethodBinding& binding, const Given& given, Prepared& prepared) {
  if (!take_client(binding, prepared) || in_handler()) return false;
  if (given.timeout != kNever) prepared.deadline = deadline_after(now_ns(), given.timeout);
  prepared.plan = binding.plan;
  if (!plan::pack_list(prepared.plan->arguments, given.values.data(), prepared.packed, prepared.sizes)) return false;
  prepared.metadata.emplace(given.metadata == Py_None ? py::handle(binding.metadata) : given.metadata);
  return !prepared.client->belongs_to_parent();
}

rpc::CallRequest request_of(const Prepared& prepared) {
  rpc::CallRequest request;
  request.method = as_text(bytes_view(prepared.name));
  request.payload = prepared.packed.payload.view();
  request.metadata = prepared.metadata->view();
  request.deadline = prepared.deadline;
  request.buffers = export_buffers(prepared.packed.buffers);
  return request;
}

PyObject* otherwise(PyObject* stub, PyObject* how, const py::object& error, const py::tuple& arguments, TimeNs deadline,
                    PyObject* metadata) {
  const py::object left = deadline == kNever ? py::object(py::none()) : py::object(py::float_(seconds_left(deadline)));
  return call_python([&] {
    return PyObject_CallMethodObjArgs(stub, how, error.ptr(), arguments.ptr(), left.ptr(), metadata, nullptr);
  });
}

py::object error_of(const rpc::ClientCall& call, const Status& begun) {
  if (!begun.ok()) return bind::error_of(begun, {.not_executed = call.not_executed()});
  return bind::error_of(call.status(), {call.details(), call.metadata(), call.not_executed()});
}

PyObject* result_of(PyObject* stub, const plan::CompiledPlan& plan, rpc::ClientCall& call, const Given& given,
                    plan::Sizes& sizes) {
  const py::object blocks = wrap_blocks(call.blocks());
  py::object value = plan::read_value(plan.result, as_text(call.payload()), blocks, sizes);
  if (value) return value.release().ptr();
  const py::bytes payload = bytes_of(as_text(call.payload()));
  const py::tuple arguments = tuple_of(given, plan.arguments.size());
  return call_python([&] {
    return PyObject_CallMethodObjArgs(stub, g_stub_names.decode, payload.ptr(), blocks.ptr(), arguments.ptr(), nullptr);
  });
}

void make_outgoing_names() {
  g_ready = PyUnicode_InternFromString("ready");
  g_timeout = PyUnicode_InternFromString("timeout");
  g_metadata = PyUnicode_InternFromString("metadata");
  g_out = PyUnicode_InternFromString("out");
  g_stub_names = {PyUnicode_InternFromString("_otherwise"), PyUnicode_InternFromString("_start_otherwise"),
                  PyUnicode_InternFromString("_decode_direct"), PyUnicode_InternFromString("start")};
}

}  // namespace rrpc::bind::direct
