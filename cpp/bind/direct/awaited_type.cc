// What Python sees of a plain call of an asyncio client: a coroutine, and to its task the future that it waits for.
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

#include "bind/direct/awaited.h"
#include "bind/direct/awaited_state.h"
#include "bind/direct/slots.h"
#include "bind/direct/surrounding.h"
#include "bind/plan/threads.h"
#include "bind/register.h"

namespace rrpc::bind::direct {
namespace {

PyTypeObject* g_awaited_type = nullptr;
PyObject* g_cancelled_error = nullptr;  // asyncio's

// What asyncio's tasks do with the future that they wait for.

PyObject* get_blocking(PyObject* self, void*) {
  const Progress& state = state_of(self);
  // None, as asyncio.isfuture() has it, makes it no future: it is a coroutine to whoever has called the method.
  return state.stage == Stage::kWaiting ? PyBool_FromLong(state.blocking ? 1 : 0) : Py_NewRef(Py_None);
}
int set_blocking(PyObject* self, PyObject* value, void*) {
  state_of(self).blocking = value == Py_True;
  return 0;
}

PyObject* get_loop(PyObject* self, PyObject*) {
  return without_throwing([self]() -> PyObject* {
    const Progress& state = state_of(self);
    if (!state.driver) throw std::runtime_error("the call has ended");
    return py::object(driver_of(state).loop()).release().ptr();
  });
}

PyObject* add_done_callback(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"", "context", nullptr};
  PyObject *callback = nullptr, *context = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "O|$O", const_cast<char**>(names), &callback, &context) == 0)
    return nullptr;
  return without_throwing([&]() -> PyObject* {
    const Section section(self);
    Progress& state = state_of(self);
    py::object in = context == nullptr || context == Py_None
                        ? py::reinterpret_steal<py::object>(PyContext_CopyCurrent())
                        : py::reinterpret_borrow<py::object>(context);
    if (!in) throw py::error_already_set();
    if (state.stage != Stage::kWaiting || state.callback) throw std::runtime_error("a call is awaited by one task");
    if (state.done) {
      driver_of(state).wake_soon(callback, self, in.ptr());
    } else {
      state.callback = py::reinterpret_borrow<py::object>(callback);
      state.context = std::move(in);
    }
    return Py_NewRef(Py_None);
  });
}

PyObject* cancel(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* const names[] = {"msg", nullptr};
  PyObject* message = Py_None;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "|O", const_cast<char**>(names), &message) == 0) return nullptr;
  return without_throwing([&]() -> PyObject* {
    const auto held = py::reinterpret_borrow<py::object>(self);
    const Section section(self);
    Progress& state = state_of(self);
    if (state.stage != Stage::kWaiting || state.done) return Py_NewRef(Py_False);
    state.done = state.cancelled = true;
    state.message = py::reinterpret_borrow<py::object>(message);
    const py::object callback = std::exchange(state.callback, py::object());
    const py::object context = std::exchange(state.context, py::object());
    if (callback) driver_of(state).wake_soon(callback.ptr(), self, context.ptr());
    cancel_call(state);
    return Py_NewRef(Py_True);
  });
}

// For the task, which throws what this raises into the coroutine and otherwise goes on with it.
PyObject* result(PyObject* self, PyObject*) {
  const Progress& state = state_of(self);
  if (!state.cancelled) return Py_NewRef(Py_None);
  PyObject* const error = state.message.is_none() ? PyObject_CallNoArgs(g_cancelled_error)
                                                  : PyObject_CallOneArg(g_cancelled_error, state.message.ptr());
  if (error != nullptr) PyErr_SetObject(g_cancelled_error, error);
  Py_XDECREF(error);
  return nullptr;
}

// What Python's coroutines have.

PyObject* get_class(PyObject*, void*) { return Py_NewRef(reinterpret_cast<PyObject*>(&PyCoro_Type)); }
PyObject* get_none(PyObject*, void*) { return Py_NewRef(Py_None); }
PyObject* get_false(PyObject*, void*) { return Py_NewRef(Py_False); }
PyObject* get_suspended(PyObject* self, void*) {
  const Stage stage = state_of(self).stage;
  return PyBool_FromLong(stage == Stage::kWaiting || stage == Stage::kElsewhere ? 1 : 0);
}
PyObject* get_name(PyObject* self, void* attribute) {
  const Progress& state = state_of(self);
  if (!state.method) return PyUnicode_FromString("call");
  PyObject* const function =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(method_of(state).stub)), "__call__");
  PyObject* const name =
      function == nullptr ? nullptr : PyObject_GetAttrString(function, static_cast<const char*>(attribute));
  Py_XDECREF(function);
  return name;
}
PyObject* show(PyObject* self) {
  PyObject* const name = get_name(self, const_cast<char*>("__qualname__"));
  PyObject* const shown =
      name == nullptr ? nullptr : PyUnicode_FromFormat("<coroutine object %U at %p>", name, static_cast<void*>(self));
  Py_XDECREF(name);
  return shown;
}

void finalize(PyObject* self) {
  if (state_of(self).stage != Stage::kNew) return;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const name = get_name(self, const_cast<char*>("__qualname__"));
  if (name == nullptr || PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine '%U' was never awaited", name) != 0)
    PyErr_WriteUnraisable(self);
  Py_XDECREF(name);
  PyErr_Restore(type, value, traceback);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  const Progress& state = state_of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(state.method.ptr());
  for (PyObject* value : state.given.values) Py_VISIT(value);
  Py_VISIT(state.given.metadata);
  Py_VISIT(state.driver.ptr());
  Py_VISIT(state.callback.ptr());
  Py_VISIT(state.context.ptr());
  Py_VISIT(state.inner.ptr());
  Py_VISIT(state.message.ptr());
  // A call that nothing else has left, because its loop is closed, keeps its coroutine, and this one keeps the call.
  // Nobody can get the call from elsewhere then.
  if (state.call.use_count() == 1) Py_VISIT(state.call->target());
  return 0;
}

int clear(PyObject* self) {
  Progress& state = state_of(self);
  end(state);
  if (state.call.use_count() == 1) const py::object target = state.call->take_target();
  return 0;
}

void dealloc(PyObject* self) {
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<Awaited*>(self)->references != nullptr) PyObject_ClearWeakRefs(self);
  Progress& state = state_of(self);
  end(state);
  state.~Progress();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* same(PyObject* self) { return Py_NewRef(self); }
PyObject* next(PyObject* self) { return send(self, Py_None); }

template <auto kFunction>
PyCFunction as_method() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kFunction));
}

PyObject* make_type() {
  static PyMethodDef methods[] = {
      {"send", send, METH_O, nullptr},
      {"throw", throw_in, METH_VARARGS, nullptr},
      {"close", close, METH_NOARGS, nullptr},
      {"get_loop", get_loop, METH_NOARGS, nullptr},
      {"add_done_callback", as_method<add_done_callback>(), METH_VARARGS | METH_KEYWORDS, nullptr},
      {"cancel", as_method<cancel>(), METH_VARARGS | METH_KEYWORDS, nullptr},
      {"result", result, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static char name[] = "__name__", qualified[] = "__qualname__";
  static PyGetSetDef fields[] = {{"_asyncio_future_blocking", get_blocking, set_blocking, nullptr, nullptr},
                                 {"__class__", get_class, nullptr, nullptr, nullptr},
                                 {"__name__", get_name, nullptr, nullptr, name},
                                 {"__qualname__", get_name, nullptr, nullptr, qualified},
                                 {"cr_await", get_none, nullptr, nullptr, nullptr},
                                 {"cr_code", get_none, nullptr, nullptr, nullptr},
                                 {"cr_frame", get_none, nullptr, nullptr, nullptr},
                                 {"cr_origin", get_none, nullptr, nullptr, nullptr},
                                 {"cr_running", get_false, nullptr, nullptr, nullptr},
                                 {"cr_suspended", get_suspended, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Awaited, references), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_finalize, reinterpret_cast<void*>(finalize)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_iter, reinterpret_cast<void*>(same)},
                                {Py_tp_iternext, reinterpret_cast<void*>(next)},
                                {Py_am_await, reinterpret_cast<void*>(same)},
                                {Py_am_send, reinterpret_cast<void*>(sent)},
                                {Py_tp_repr, reinterpret_cast<void*>(show)},
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_getset, fields},
                                {0, nullptr}};
  static PyType_Spec spec = {"rrpc._core.AwaitedCall", sizeof(Awaited), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

py::object make_awaited(const DirectMethod& method, const Given& given) {
  auto made = py::reinterpret_steal<py::object>(g_awaited_type->tp_alloc(g_awaited_type, 0));
  if (!made) throw py::error_already_set();
  Progress& state = *new (&state_of(made.ptr())) Progress();
  state.method = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(const_cast<DirectMethod*>(&method)));
  state.given = given;
  for (PyObject* value : given.values) Py_XINCREF(value);
  if (given.metadata != Py_None) Py_INCREF(given.metadata);
  return made;
}

void register_awaited(py::module_& module) {
  make_awaited_names();
  PyObject* const type = make_type();
  if (type == nullptr) throw py::error_already_set();
  g_awaited_type = reinterpret_cast<PyTypeObject*>(type);
  module.attr("AwaitedCall") = py::reinterpret_borrow<py::object>(type);
  module.def(
      "set_loop_drivers",
      [](py::dict drivers, const py::object& cancelled_error) {
        g_cancelled_error = Py_NewRef(cancelled_error.ptr());
        set_loop_drivers(std::move(drivers));
      },
      py::arg("drivers"), py::arg("cancelled_error"));
}

}  // namespace rrpc::bind::direct
