#include "bind/direct/surrounding.h"

#include "bind/convert.h"
#include "bind/direct/slots.h"

namespace rrpc::bind::direct {
namespace {

PyObject* g_variable = nullptr;
PyObject* g_context_class = nullptr;
PyTypeObject* g_current_call_type = nullptr;
PyObject* g_running_loop = nullptr;  // asyncio's function, once somebody has imported asyncio

CurrentCall& as_call(PyObject* self) { return *reinterpret_cast<CurrentCall*>(self); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  CurrentCall& call = as_call(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(call.core);
  Py_VISIT(call.context);
  return 0;
}

int clear(PyObject* self) {
  CurrentCall& call = as_call(self);
  Py_CLEAR(call.core);
  Py_CLEAR(call.name);
  Py_CLEAR(call.metadata);
  Py_CLEAR(call.context);
  return 0;
}

PyObject* get_ended(PyObject* self, void*) { return PyBool_FromLong(as_call(self).ended ? 1 : 0); }

PyObject* call_context(PyObject* self, PyObject*) {
  return without_throwing([self] { return context_of(as_call(self)).release().ptr(); });
}

bool has_ended(PyObject* surrounding) {
  if (Py_TYPE(surrounding) == g_current_call_type) return as_call(surrounding).ended;
  PyObject* const ended = PyObject_GetAttrString(surrounding, "ended");
  if (ended == nullptr) throw py::error_already_set();
  Py_DECREF(ended);
  return ended == Py_True;
}

}  // namespace

void set_context(py::object variable, py::object context_class) {
  g_variable = variable.release().ptr();
  g_context_class = context_class.release().ptr();
}

PyObject* context_variable() { return g_variable; }
PyTypeObject* current_call_type() { return g_current_call_type; }

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

py::object context_of(CurrentCall& call) {
  if (call.context == nullptr) {
    const int64_t left = call.deadline == kNever ? -1 : std::max<TimeNs>(call.deadline - now_ns(), 0);
    const py::object made = py::handle(g_context_class)(py::handle(call.core), call.handle, py::handle(call.name), left,
                                                        py::handle(call.metadata));
    if (call.ended) made.attr("ended") = true;
    if (call.context == nullptr) call.context = made.inc_ref().ptr();  // else another thread was first
  }
  return py::reinterpret_borrow<py::object>(call.context);
}

bool in_handler() {
  PyObject* around = nullptr;
  if (PyContextVar_Get(g_variable, nullptr, &around) != 0) throw py::error_already_set();
  const auto held = py::reinterpret_steal<py::object>(around);
  return held && !held.is_none() && !has_ended(around);
}

bool loop_runs() {
  if (g_running_loop == nullptr) {
    PyObject* const asyncio = PyImport_GetModule(py::str("asyncio").ptr());
    if (asyncio == nullptr) return false;
    g_running_loop = PyObject_GetAttrString(asyncio, "_get_running_loop");
    Py_DECREF(asyncio);
    if (g_running_loop == nullptr) {  // it is being imported
      PyErr_Clear();
      return true;
    }
  }
  PyObject* const loop = PyObject_CallNoArgs(g_running_loop);
  if (loop == nullptr) PyErr_Clear();
  const bool runs = loop != Py_None;
  Py_XDECREF(loop);
  return runs;
}

}  // namespace rrpc::bind::direct
