#include "bind/direct/method.h"

#include <structmember.h>

#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/direct/awaited.h"
#include "bind/direct/future.h"
#include "bind/direct/outgoing.h"
#include "bind/direct/slots.h"
#include "bind/direct/surrounding.h"
#include "bind/gil.h"
#include "bind/plan/python.h"
#include "bind/register.h"
#include "bind/share.h"
#include "bind/stream.h"

namespace rrpc::bind::direct {
namespace {

// Starts the call and waits for its end. Throws what a signal's handler raises; the call is cancelled then.
Status carry_out(const std::shared_ptr<driver::Client>& client, const rpc::ClientCallRef& call,
                 rpc::CallRequest&& request) {
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

bool prepare_call(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords, Given& given,
                  Prepared& prepared) {
  return take_arguments(*method.binding, args, count, keywords, given) && prepare(*method.binding, given, prepared);
}

// Null with an exception, or with none where nothing was done and the stub is to make the call.
PyObject* call_directly(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords) {
  Given given;
  Prepared prepared;
  if (loop_runs() || !prepare_call(method, args, count, keywords, given, prepared)) return nullptr;
  const rpc::ClientCallRef call = prepared.client->new_call();
  const Status begun = carry_out(prepared.client, call, request_of(prepared));
  if (begun.ok() && call->status().ok()) return result_of(method.stub, *prepared.plan, *call, given, prepared.sizes);
  return otherwise(method.stub, g_stub_names.otherwise, error_of(*call, begun),
                   tuple_of(given, prepared.plan->arguments.size()), prepared.deadline, given.metadata);
}

// The same; gives a future.
PyObject* start_directly(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords) {
  Given given;
  Prepared prepared;
  if (!prepare_call(method, args, count, keywords, given, prepared)) return nullptr;
  const rpc::ClientCallRef call = prepared.client->new_call();
  rpc::CallRequest request = request_of(prepared);
  Status begun;
  {
    const WithoutGil freed;
    begun = prepared.client->start(call, std::move(request), true);
  }
  release_deferred(prepared.client->engine());
  py::tuple arguments = tuple_of(given, prepared.plan->arguments.size());
  if (!begun.ok())
    return otherwise(method.stub, g_stub_names.start_otherwise, error_of(*call, begun), arguments, prepared.deadline,
                     given.metadata);
  end_if_interrupted(*prepared.client, call);
  return make_future({prepared.client, call, prepared.plan, prepared.sizes, prepared.deadline,
                      py::reinterpret_borrow<py::object>(method.stub), std::move(arguments),
                      py::reinterpret_borrow<py::object>(given.metadata)})
      .release()
      .ptr();
}

// The same in an event loop; gives what is to be awaited, and begun then.
PyObject* await_later(const DirectMethod& method, PyObject* const* args, size_t count, PyObject* keywords) {
  Given given;
  if (!is_bound(*method.binding) || !take_arguments(*method.binding, args, count, keywords, given)) return nullptr;
  return make_awaited(method, given).release().ptr();
}

template <auto kMake>
PyObject* vectorcall(PyObject* self, PyObject* const* args, size_t flagged_count, PyObject* keywords) {
  const auto& method = *reinterpret_cast<DirectMethod*>(self);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
  PyObject* const result = without_throwing([&] { return kMake(method, args, count, keywords); });
  if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  return PyObject_Vectorcall(method.stub, args, flagged_count, keywords);
}

PyObject* start(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  const auto& method = *reinterpret_cast<DirectMethod*>(self);
  const auto positional = static_cast<size_t>(count);
  PyObject* const result = without_throwing([&] { return start_directly(method, args, positional, keywords); });
  if (result != nullptr || PyErr_Occurred() != nullptr) return result;
  PyObject* const slow = PyObject_GetAttr(method.stub, g_stub_names.start);
  PyObject* const future = slow == nullptr ? nullptr : PyObject_Vectorcall(slow, args, positional, keywords);
  Py_XDECREF(slow);
  return future;
}

// Whatever else it is asked for, the stub is.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  const auto& method = *reinterpret_cast<DirectMethod*>(self);
  if (name == g_stub_names.start && !method.start_is_stubs) return PyObject_GenericGetAttr(self, name);
  return PyObject_GetAttr(method.stub, name);
}
int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  auto& method = *reinterpret_cast<DirectMethod*>(self);
  if (PyObject_SetAttr(method.stub, name, value) != 0) return -1;
  if (PyUnicode_CompareWithASCIIString(name, "start") == 0) method.start_is_stubs = method.in_loop || value != nullptr;
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
  int in_loop = 0;
  if (PyArg_ParseTuple(args, "OOp", &stub, &binding, &in_loop) == 0) return nullptr;
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
  method.vectorcall = in_loop != 0 ? vectorcall<await_later> : vectorcall<call_directly>;
  method.in_loop = method.start_is_stubs = in_loop != 0;
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
  if (const auto* const binding = held_by<MethodBinding>(self)) {
    Py_VISIT(binding->defaults.ptr());
    Py_VISIT(binding->channel.ptr());
    Py_VISIT(binding->connection.ptr());
    Py_VISIT(binding->core.ptr());
  }
  return 0;
}
int clear_binding(PyObject* self) {
  if (auto* const binding = held_by<MethodBinding>(self)) {
    binding->client = nullptr;  // so that no call looks at the others
    binding->channel = binding->connection = binding->core = py::none();
  }
  return 0;
}

// What was bound before goes without the latch, as finalizers may run.
void bind_method(MethodBinding& binding, py::object connection, py::object client, py::bytes name) {
  const ClientSlot& slot = slot_of(client);
  const std::lock_guard lock(binding.latch);
  binding.client = &slot;
  std::swap(binding.connection, connection);
  std::swap(binding.core, client);
  std::swap(binding.name, name);
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
  make_outgoing_names();
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
      .def("bind", &bind_method, py::arg("connection"), py::arg("client"), py::arg("name"));
}

}  // namespace rrpc::bind::direct
