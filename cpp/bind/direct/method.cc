#include "bind/direct/method.h"

#include <structmember.h>

#include <array>
#include <optional>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/direct/future.h"
#include "bind/direct/slots.h"
#include "bind/direct/surrounding.h"
#include "bind/gil.h"
#include "bind/metadata.h"
#include "bind/plan/python.h"
#include "bind/register.h"
#include "bind/share.h"
#include "bind/stream.h"

namespace rrpc::bind::direct {
namespace {

constexpr double kShortestTimeoutS = 1e-6;  // as in rrpc/_options.py

struct DirectMethod {
  PyObject_HEAD;
  vectorcallfunc vectorcall;
  PyObject* stub;
  PyObject* binding_owner;
  MethodBinding* binding;
  PyObject* weak_references;
  bool start_replaced;  // by somebody's own, which the stub has
};

PyObject *g_ready = nullptr, *g_timeout = nullptr, *g_metadata = nullptr, *g_out = nullptr, *g_otherwise = nullptr,
         *g_decode = nullptr, *g_start = nullptr, *g_start_otherwise = nullptr;  // interned names

// A call's arguments in the order of the parameters; borrowed.
struct Given {
  std::array<PyObject*, plan::kArgumentsMax> values{};
  TimeNs deadline = kNever;
  PyObject* metadata = Py_None;
};

// False: the stub is to see to it, or to say what is wrong.
bool take_timeout(PyObject* timeout, TimeNs& deadline) {
  if (!PyFloat_CheckExact(timeout)) return false;
  const double seconds = PyFloat_AS_DOUBLE(timeout);
  if (!(seconds >= kShortestTimeoutS && seconds < 1e9)) return false;
  deadline = deadline_after(now_ns(), static_cast<TimeNs>(seconds * 1e9));
  return true;
}

bool take_keyword(const MethodBinding& binding, PyObject* name, PyObject* value, Given& given, bool& timed) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(binding.names.ptr()); ++i) {
    if (PyTuple_GET_ITEM(binding.names.ptr(), i) != name) continue;
    PyObject*& place = given.values[static_cast<size_t>(i)];
    if (place != nullptr) return false;
    place = value;
    return true;
  }
  if (PySet_Contains(binding.options.ptr(), name) != 1) return false;
  if (name == g_timeout && value != Py_None) {
    timed = true;
    return take_timeout(value, given.deadline);
  }
  if (name == g_metadata && PyDict_CheckExact(value) && PyBytes_GET_SIZE(binding.metadata.ptr()) == 0) {
    given.metadata = value;
    return true;
  }
  return value == Py_None && (name == g_timeout || name == g_metadata || name == g_out);
}

bool take_arguments(const MethodBinding& binding, PyObject* const* args, size_t count, PyObject* keywords,
                    Given& given) {
  const size_t wanted = binding.plan->arguments.size();
  if (count > binding.positional) return false;
  for (size_t i = 0; i < count; ++i) given.values[i] = args[i];
  bool timed = false;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < named; ++i)
    if (!take_keyword(binding, PyTuple_GET_ITEM(keywords, i), args[count + static_cast<size_t>(i)], given, timed))
      return false;
  for (size_t i = 0; i < wanted; ++i) {
    if (given.values[i] != nullptr) continue;
    given.values[i] = PyTuple_GET_ITEM(binding.defaults.ptr(), static_cast<Py_ssize_t>(i));
    if (given.values[i] == Py_Ellipsis) return false;
  }
  if (!timed && binding.timeout != kNever) given.deadline = deadline_after(now_ns(), binding.timeout);
  return true;
}

bool is_ready(const MethodBinding& binding) {
  PyObject* const ready = PyObject_GetAttr(binding.channel.ptr(), g_ready);
  if (ready == nullptr) PyErr_Clear();
  Py_XDECREF(ready);  // compared only
  return ready == binding.connection.ptr();
}

// Starts the call and waits for its end. Throws what a signal's handler raises; the call is cancelled then.
Status carry_out(const std::shared_ptr<driver::Client>& client, const rpc::ClientCallRef& call,
                 rpc::CallRequest request) {
  Status status;
  auto waited = driver::WaitResult::kInterrupted;
  {
    const WithoutGil freed;
    status = client->start(call, std::move(request));
    if (status.ok()) waited = client->wait(call, kNever, g_deferred_pending);
  }
  if (!status.ok()) {
    release_deferred(client->engine());
    return status;
  }
  try {
    check_signals(waited == driver::WaitResult::kInterrupted, client->engine());
    run_deferred();
    if (waited != driver::WaitResult::kDone) wait_for(*client, call, kNever);
  } catch (...) {
    interrupt(*client, call);
    throw;
  }
  return status;
}

py::tuple tuple_of(const Given& given, size_t count) {
  py::tuple arguments(count);
  for (size_t i = 0; i < count; ++i) arguments[i] = py::handle(given.values[i]);
  return arguments;
}

// The stub makes the call elsewhere, where that is right, or raises the error as the method declares it.
PyObject* otherwise(const DirectMethod& method, PyObject* how, const py::object& error, const Given& given) {
  const py::tuple arguments = tuple_of(given, method.binding->plan->arguments.size());
  const py::object left =
      given.deadline == kNever ? py::object(py::none()) : py::object(py::float_(seconds_left(given.deadline)));
  return call_python([&] {
    return PyObject_CallMethodObjArgs(method.stub, how, error.ptr(), arguments.ptr(), left.ptr(), given.metadata,
                                      nullptr);
  });
}

PyObject* result_of(const DirectMethod& method, const plan::CompiledPlan& plan, rpc::ClientCall& call,
                    const Given& given, plan::Sizes& sizes) {
  const py::object blocks = wrap_blocks(call.blocks());
  py::object value = plan::read_value(plan.result, as_text(call.payload()), blocks, sizes);
  if (value) return value.release().ptr();
  const py::bytes payload = bytes_of(as_text(call.payload()));
  const py::tuple arguments = tuple_of(given, plan.arguments.size());
  return call_python([&] {
    return PyObject_CallMethodObjArgs(method.stub, g_decode, payload.ptr(), blocks.ptr(), arguments.ptr(), nullptr);
  });
}

// A call that is to be begun.
struct Prepared {
  Given given;
  plan::Packed packed;
  plan::Sizes sizes;
  std::shared_ptr<driver::Client> client;  // kept, as is the plan, whatever others do without the GIL
  std::shared_ptr<const plan::CompiledPlan> plan;
  py::bytes name;
  std::optional<PackedMetadata> metadata;
};

// False: the stub is to make the call.
bool prepare(const MethodBinding& binding, PyObject* const* args, size_t count, PyObject* keywords,
             Prepared& prepared) {
  if (binding.client == nullptr || !take_arguments(binding, args, count, keywords, prepared.given)) return false;
  if (!is_ready(binding) || in_handler()) return false;
  prepared.plan = binding.plan;
  if (!plan::pack_list(prepared.plan->arguments, prepared.given.values.data(), prepared.packed, prepared.sizes))
    return false;
  prepared.client = *binding.client;
  prepared.name = binding.name;
  prepared.metadata.emplace(prepared.given.metadata == Py_None ? py::handle(binding.metadata)
                                                               : prepared.given.metadata);
  return prepared.client != nullptr && !prepared.client->belongs_to_parent();
}

rpc::CallRequest request_of(const Prepared& prepared) {
  rpc::CallRequest request;
  request.method = as_text(bytes_view(prepared.name));
  request.payload = as_bytes(prepared.packed.payload);
  request.metadata = prepared.metadata->view();
  request.deadline = prepared.given.deadline;
  for (const py::object& buffer : prepared.packed.buffers) request.buffers.push_back(export_buffer(buffer, false));
  return request;
}

// Null with an exception, or with none where nothing was done and the stub is to make the call.
PyObject* call_directly(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords) {
  Prepared prepared;
  if (loop_runs() || !prepare(*method.binding, args, count, keywords, prepared)) return nullptr;
  const rpc::ClientCallRef call = prepared.client->new_call();
  const Status begun = carry_out(prepared.client, call, request_of(prepared));
  if (!begun.ok())
    return otherwise(method, g_otherwise, error_of(begun, {.not_executed = call->not_executed()}), prepared.given);
  if (!call->status().ok())
    return otherwise(method, g_otherwise,
                     error_of(call->status(), {call->details(), call->metadata(), call->not_executed()}),
                     prepared.given);
  return result_of(method, *prepared.plan, *call, prepared.given, prepared.sizes);
}

// The same; gives a future.
PyObject* start_directly(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords) {
  Prepared prepared;
  if (!prepare(*method.binding, args, count, keywords, prepared)) return nullptr;
  const rpc::ClientCallRef call = prepared.client->new_call();
  rpc::CallRequest request = request_of(prepared);
  Status begun;
  {
    const WithoutGil freed;
    begun = prepared.client->start(call, std::move(request));
  }
  release_deferred(prepared.client->engine());
  if (!begun.ok())
    return otherwise(method, g_start_otherwise, error_of(begun, {.not_executed = call->not_executed()}),
                     prepared.given);
  end_if_interrupted(*prepared.client, call);
  py::tuple arguments = tuple_of(prepared.given, prepared.plan->arguments.size());
  return make_future({prepared.client, call, prepared.plan, prepared.sizes, prepared.given.deadline,
                      py::reinterpret_borrow<py::object>(method.stub), std::move(arguments),
                      py::reinterpret_borrow<py::object>(prepared.given.metadata)})
      .release()
      .ptr();
}

PyObject* vectorcall(PyObject* self, PyObject* const* args, size_t flagged_count, PyObject* keywords) {
  const auto& method = *reinterpret_cast<DirectMethod*>(self);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
  PyObject* const result = without_throwing([&] { return call_directly(method, args, count, keywords); });
  if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  return PyObject_Vectorcall(method.stub, args, flagged_count, keywords);
}

PyObject* start(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  const auto& method = *reinterpret_cast<DirectMethod*>(self);
  const auto positional = static_cast<size_t>(count);
  PyObject* const result = without_throwing([&] { return start_directly(method, args, positional, keywords); });
  if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  PyObject* const slow = PyObject_GetAttr(method.stub, g_start);
  PyObject* const future = slow == nullptr ? nullptr : PyObject_Vectorcall(slow, args, positional, keywords);
  Py_XDECREF(slow);
  return future;
}

// Whatever else it is asked for, the stub is.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  if (name == g_start && !reinterpret_cast<DirectMethod*>(self)->start_replaced)
    return PyObject_GenericGetAttr(self, name);
  return PyObject_GetAttr(reinterpret_cast<DirectMethod*>(self)->stub, name);
}
int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  auto& method = *reinterpret_cast<DirectMethod*>(self);
  if (PyObject_SetAttr(method.stub, name, value) != 0) return -1;
  if (PyUnicode_CompareWithASCIIString(name, "start") == 0) method.start_replaced = value != nullptr;
  return 0;
}
PyObject* show(PyObject* self) { return PyObject_Repr(reinterpret_cast<DirectMethod*>(self)->stub); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<DirectMethod*>(self)->stub);
  Py_VISIT(reinterpret_cast<DirectMethod*>(self)->binding_owner);
  return 0;
}
int clear(PyObject*) { return 0; }  // it is no use without its stub: whatever is in a cycle with it clears that

void dealloc(PyObject* self) {
  auto& method = *reinterpret_cast<DirectMethod*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (method.weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(method.stub);
  Py_CLEAR(method.binding_owner);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *stub = nullptr, *binding = nullptr;
  if (PyArg_ParseTuple(args, "OO", &stub, &binding) == 0) return nullptr;
  MethodBinding* found = nullptr;
  try {
    found = py::handle(binding).cast<MethodBinding*>();
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "the binding must be a MethodBinding");
    return nullptr;
  }
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto& method = *reinterpret_cast<DirectMethod*>(self);
  method.vectorcall = vectorcall;
  method.stub = Py_NewRef(stub);
  method.binding_owner = Py_NewRef(binding);
  method.binding = found;
  return self;
}

PyObject* make_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(DirectMethod, vectorcall), READONLY, nullptr},
      {"__weaklistoffset__", T_PYSSIZET, offsetof(DirectMethod, weak_references), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyMethodDef methods[] = {
      {"start", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(start)), METH_FASTCALL | METH_KEYWORDS,
       "Starts a call, and returns its future without waiting for the result."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                                {Py_tp_setattro, reinterpret_cast<void*>(set_attribute)},
                                {Py_tp_repr, reinterpret_cast<void*>(show)},
                                {Py_tp_members, members},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"rrpc._core.DirectMethod", sizeof(DirectMethod), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  return PyType_FromSpec(&spec);
}

// A service may hold a client, whose channel holds the server: cycles go through here.
int traverse_binding(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().holder_constructed()) return 0;
  const auto& binding = py::cast<MethodBinding&>(py::handle(self));
  Py_VISIT(binding.defaults.ptr());
  Py_VISIT(binding.channel.ptr());
  Py_VISIT(binding.connection.ptr());
  Py_VISIT(binding.core.ptr());
  return 0;
}
int clear_binding(PyObject* self) {
  if (!reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().holder_constructed()) return 0;
  auto& binding = py::cast<MethodBinding&>(py::handle(self));
  binding.client = nullptr;  // so that no call looks at the others
  binding.channel = binding.connection = binding.core = py::none();
  return 0;
}

std::shared_ptr<MethodBinding> make_binding(std::shared_ptr<plan::CompiledPlan> plan, py::tuple names,
                                            size_t positional, py::tuple defaults, py::frozenset options,
                                            py::object channel, const py::object& timeout, py::bytes metadata) {
  if (names.size() != plan->arguments.size() || defaults.size() != names.size())
    throw py::value_error("each parameter has a name, and a default or ...");
  auto binding = std::make_shared<MethodBinding>();
  binding->plan = std::move(plan);
  binding->names = std::move(names);
  binding->positional = positional;
  binding->defaults = std::move(defaults);
  binding->options = std::move(options);
  binding->channel = std::move(channel);
  if (!timeout.is_none()) binding->timeout = static_cast<TimeNs>(std::min(timeout.cast<double>(), 9e9) * kSecond);
  binding->metadata = std::move(metadata);
  return binding;
}

}  // namespace

void register_method(py::module_& module) {
  g_ready = PyUnicode_InternFromString("ready");
  g_timeout = PyUnicode_InternFromString("timeout");
  g_metadata = PyUnicode_InternFromString("metadata");
  g_out = PyUnicode_InternFromString("out");
  g_otherwise = PyUnicode_InternFromString("_otherwise");
  g_decode = PyUnicode_InternFromString("_decode_direct");
  g_start = PyUnicode_InternFromString("start");
  g_start_otherwise = PyUnicode_InternFromString("_start_otherwise");
  PyObject* const type = make_type();
  if (type == nullptr) throw py::error_already_set();
  module.attr("DirectMethod") = py::reinterpret_steal<py::object>(type);
  py::class_<MethodBinding, std::shared_ptr<MethodBinding>>(module, "MethodBinding",
                                                            py::custom_type_setup([](PyHeapTypeObject* heap_type) {
                                                              PyTypeObject& collected = heap_type->ht_type;
                                                              collected.tp_flags |= Py_TPFLAGS_HAVE_GC;
                                                              collected.tp_traverse = traverse_binding;
                                                              collected.tp_clear = clear_binding;
                                                            }))
      .def(py::init(&make_binding), py::arg("plan"), py::arg("names"), py::arg("positional"), py::arg("defaults"),
           py::arg("options"), py::arg("channel"), py::arg("timeout"), py::arg("metadata"))
      .def("bind", [](MethodBinding& binding, py::object connection, py::handle client, py::bytes name) {
        binding.connection = std::move(connection);
        binding.client = &client_of(client);
        binding.core = py::reinterpret_borrow<py::object>(client);
        binding.name = std::move(name);
      });
}

}  // namespace rrpc::bind::direct
