#include "bind/direct/surrounding.h"

#include "bind/convert.h"
#include "bind/direct/slots.h"
#include "bind/plan/threads.h"

namespace rrpc::bind::direct {
namespace {

PyObject* g_variable = nullptr;
PyObject* g_context_class = nullptr;
PyTypeObject* g_current_call_type = nullptr;
std::atomic<PyObject*> g_running_loop{nullptr};  // asyncio's function, once somebody has imported asyncio
PyObject* g_loop_drivers = nullptr;
PyObject* g_asyncio = nullptr;  // the interned name

CurrentCall& as_call(PyObject* self) { return *reinterpret_cast<CurrentCall*>(self); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  CurrentCall& call = as_call(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(call.core);
  Py_VISIT(call.context.load());
  Py_VISIT(call.task);
  return 0;
}

int clear(PyObject* self) {
  CurrentCall& call = as_call(self);
  Py_CLEAR(call.core);
  Py_CLEAR(call.name);
  Py_CLEAR(call.metadata);
  PyObject* const context = call.context.load(std::memory_order_relaxed);  // no other thread has the call
  call.context.store(nullptr, std::memory_order_relaxed);
  Py_XDECREF(context);
  Py_CLEAR(call.task);
  return 0;
}

bool has_ended(PyObject* surrounding);

PyObject* get_ended(PyObject* self, void*) {
  return without_throwing([self] { return PyBool_FromLong(has_ended(self) ? 1 : 0); });
}

PyObject* call_context(PyObject* self, PyObject*) {
  return without_throwing([self] { return context_of(as_call(self)).release().ptr(); });
}

bool has_ended(PyObject* surrounding) {
  if (Py_TYPE(surrounding) == g_current_call_type) {
    const CurrentCall& call = as_call(surrounding);
    // A call that Python answers ends in its Context.
    if (call.ended.load(kOrdered)) return true;
    PyObject* const context = call.context.load(kOrdered);
    return context != nullptr && has_ended(context);
  }
  PyObject* const ended = PyObject_GetAttrString(surrounding, "ended");
  if (ended == nullptr) throw py::error_already_set();
  Py_DECREF(ended);
  return ended == Py_True;
}

// Calls a function without arguments. One in C that takes none is called as what it is: asyncio's is asked in each
// call.
PyObject* call_plainly(PyObject* function) {
  if (PyCFunction_CheckExact(function) && PyCFunction_GetFlags(function) == METH_NOARGS)
    return PyCFunction_GetFunction(function)(PyCFunction_GetSelf(function), nullptr);
  return PyObject_CallNoArgs(function);
}

// Gives None without a loop, nothing where asyncio is being imported.
py::object running_loop() {
  PyObject* function = g_running_loop.load(std::memory_order_acquire);
  if (function == nullptr) {
    const py::object asyncio = value_in(PyImport_GetModuleDict(), g_asyncio);
    if (!asyncio) return py::none();
    function = PyObject_GetAttrString(asyncio.ptr(), "_get_running_loop");  // kept for good
    g_running_loop.store(function, std::memory_order_release);
  }
  auto loop = py::reinterpret_steal<py::object>(function == nullptr ? nullptr : call_plainly(function));
  if (!loop) PyErr_Clear();
  return loop;
}

}  // namespace

void set_context(py::object variable, py::object context_class) {
  g_asyncio = PyUnicode_InternFromString("asyncio");
  g_variable = variable.release().ptr();
  g_context_class = context_class.release().ptr();
}

PyObject* context_variable() { return g_variable; }

PyTypeObject* make_current_call_type() {
  static PyMethodDef methods[] = {{"context", call_context, METH_NOARGS,
                                   "Returns the call's rrpc.Context, which is made when it is first asked for."},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef fields[] = {{"ended", get_ended, nullptr, "Whether the call is answered.", nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc_collected<clear>)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, fields},
                                {0, nullptr}};
  static PyType_Spec spec = {"rrpc._core.CurrentCall", sizeof(CurrentCall), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  g_current_call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (g_current_call_type == nullptr) throw py::error_already_set();
  return g_current_call_type;
}

CurrentCall& make_current_call() {
  PyObject* const made = g_current_call_type->tp_alloc(g_current_call_type, 0);
  if (made == nullptr) throw py::error_already_set();
  return as_call(made);
}

CurrentCall* recycled(CurrentCall* call) {
#ifndef Py_GIL_DISABLED  // where another thread's references are counted apart
  if (call != nullptr && Py_REFCNT(call) == 1) {
    clear(reinterpret_cast<PyObject*>(call));
    call->ended = false;
    return call;
  }
#endif
  Py_XDECREF(reinterpret_cast<PyObject*>(call));
  return nullptr;
}

py::object context_of(CurrentCall& call) {
  if (call.context.load(kOrdered) == nullptr) {
    const int64_t left = call.deadline == kNever ? -1 : std::max<TimeNs>(call.deadline - now_ns(), 0);
    const py::object made = py::handle(g_context_class)(py::handle(call.core), call.handle, py::handle(call.name), left,
                                                        py::handle(call.metadata));
    if (call.task != nullptr) made.attr("task") = py::handle(call.task);
    PyObject* none = nullptr;
    if (call.context.compare_exchange_strong(none, made.ptr())) made.inc_ref();  // else another thread was first
    if (call.ended.load(kOrdered))
      made.attr("ended") = true;  // after the exchange, as end() looks for the context after it has ended
  }
  return py::reinterpret_borrow<py::object>(call.context.load(kOrdered));
}

void end(CurrentCall& call) {
  call.ended.store(true, kOrdered);
  if (PyObject* const context = call.context.load(kOrdered)) py::handle(context).attr("ended") = true;
}

bool in_handler() {
  PyObject* around = nullptr;
  if (PyContextVar_Get(g_variable, nullptr, &around) != 0) throw py::error_already_set();
  const auto held = py::reinterpret_steal<py::object>(around);
  return held && !held.is_none() && !has_ended(around);
}

bool loop_runs() {
  const py::object loop = running_loop();
  return !loop || !loop.is_none();
}

void set_loop_drivers(py::dict drivers) { g_loop_drivers = drivers.release().ptr(); }

py::object running_driver() {
  const py::object loop = running_loop();
  if (!loop || loop.is_none() || g_loop_drivers == nullptr) return {};
  py::object driver = value_in(g_loop_drivers, loop.ptr());
  if (!driver) PyErr_Clear();
  return driver;
}

}  // namespace rrpc::bind::direct
