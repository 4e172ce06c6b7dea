#include "bind/direct/future.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/direct/slots.h"
#include "bind/direct/surrounding.h"
#include "bind/gil.h"
#include "bind/plan/threads.h"
#include "bind/register.h"
#include "bind/share.h"
#include "bind/stream.h"

namespace rrpc::bind::direct {
namespace {

PyTypeObject* g_future_class = nullptr;  // rrpc.Future, once it is there
PyObject* g_wait_result = nullptr;       // the name of what waits in Python

// Guarded by the future's section.
struct State {
  Begun begun;
  py::object value;          // null until it was read
  py::object blocks;         // the reply's, once they were taken from the call
  bool reading = false;      // a thread makes the value, and may let others in meanwhile
  unsigned long reader = 0;  // that thread
  bool given = false;        // Python has all of it, and takes over
};

struct DirectFuture {
  PyObject_HEAD;
  State* state;  // null of a future that Python made
};

DirectFuture& as_future(PyObject* self) { return *reinterpret_cast<DirectFuture*>(self); }

// Another thread's reading; what a constructor does with the future meanwhile, in the reader's own, is Python's.
void await_reader(const State& state) {
  while (state.reading && state.reader != PyThread_get_thread_ident()) {
    const WithoutGil freed;
    std::this_thread::yield();
  }
}

// Makes the value; not if Python has taken over meanwhile, which decodes the reply itself.
void read(State& state) {
  const rpc::ClientCallRef call = state.begun.call;  // kept, as is the plan, if Python takes over meanwhile
  const std::shared_ptr<const plan::CompiledPlan> plan = state.begun.plan;
  plan::Sizes sizes = state.begun.sizes;
  state.blocks = wrap_blocks(call->blocks());
  state.reading = true;
  state.reader = PyThread_get_thread_ident();
  py::object value;
  try {
    value = plan::read_value(plan->result, as_text(call->payload()), state.blocks, sizes);
  } catch (...) {
    state.reading = false;
    throw;
  }
  state.reading = false;
  if (!value || state.given) return;
  state.value = std::move(value);
  const py::tuple gone = std::exchange(state.begun.arguments, py::tuple());  // which the caller may want to be gone
}

// The call's value, or null where Python is to tell how it ended.
PyObject* value_of(State& state) {
  await_reader(state);
  if (state.value) return Py_NewRef(state.value.ptr());
  if (state.given || state.blocks || loop_runs()) return nullptr;
  const rpc::ClientCallRef call = state.begun.call;
  const std::shared_ptr<driver::Client> client = state.begun.client;
  if (client->belongs_to_parent()) return nullptr;
  if (!call->done()) wait_for(*client, call, kNever);
  await_reader(state);
  if (!state.value && !state.given && !state.blocks && call->status().ok()) read(state);
  return state.value ? Py_NewRef(state.value.ptr()) : nullptr;
}

PyObject* result(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  State* const state = as_future(self).state;
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  if (state != nullptr && (count + named == 0 || (count == 1 && named == 0 && args[0] == Py_None))) {
    PyObject* const value = without_throwing([&] {
      const Section section(self);
      return value_of(*state);
    });
    if (value != nullptr || PyErr_Occurred() != nullptr) return value;
  }
  PyObject* const slow = PyObject_GetAttr(self, g_wait_result);
  PyObject* const value =
      slow == nullptr ? nullptr : PyObject_Vectorcall(slow, args, static_cast<size_t>(count), keywords);
  Py_XDECREF(slow);
  return value;
}

// (call, stub, arguments, seconds left or None, metadata, whether it has a value, the value), once: Python takes over.
// None if it has done so, or made the future.
PyObject* give(PyObject* self, PyObject*) {
  State* const state = as_future(self).state;
  if (state == nullptr) return Py_NewRef(Py_None);
  return without_throwing([&]() -> PyObject* {
    const Section section(self);
    if (std::exchange(state->given, true)) return Py_NewRef(Py_None);
    const Begun begun = std::exchange(state->begun, Begun());
    const py::object left =
        begun.deadline == kNever ? py::object(py::none()) : py::object(py::float_(seconds_left(begun.deadline)));
    py::object taken;
    if (state->blocks) taken = py::make_tuple(bytes_of(as_text(begun.call->payload())), state->blocks);
    const bool has_value = static_cast<bool>(state->value);
    return py::make_tuple(wrap_call(begun.client, begun.call, std::move(taken)), begun.stub, begun.arguments, left,
                          begun.metadata, has_value, has_value ? state->value : py::object(py::none()))
        .release()
        .ptr();
  });
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (const State* const state = as_future(self).state) {
    Py_VISIT(state->begun.stub.ptr());
    Py_VISIT(state->begun.arguments.ptr());
    Py_VISIT(state->begun.metadata.ptr());
    Py_VISIT(state->value.ptr());
    Py_VISIT(state->blocks.ptr());
  }
  return 0;
}

int clear(PyObject* self) {
  delete std::exchange(as_future(self).state, nullptr);
  return 0;
}

PyObject* make_type() {
  static PyMethodDef methods[] = {
      {"result", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(result)), METH_FASTCALL | METH_KEYWORDS,
       "Returns the call's result, waiting for it at most ``timeout`` seconds."},
      {"_give", give, METH_NOARGS, "Gives Python what the call was begun with."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc_collected<clear>)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"rrpc._core.DirectFuture", sizeof(DirectFuture), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

py::object make_future(Begun begun) {
  auto state = std::make_unique<State>();
  state->begun = std::move(begun);
  auto future = py::reinterpret_steal<py::object>(g_future_class->tp_alloc(g_future_class, 0));
  if (!future) throw py::error_already_set();
  as_future(future.ptr()).state = state.release();
  return future;
}

void register_future(py::module_& module) {
  g_wait_result = PyUnicode_InternFromString("_wait_result");
  PyObject* const type = make_type();
  if (type == nullptr) throw py::error_already_set();
  module.attr("DirectFuture") = py::reinterpret_steal<py::object>(type);
  module.def(
      "set_future_class",
      [](const py::type& made) { g_future_class = reinterpret_cast<PyTypeObject*>(py::type(made).release().ptr()); },
      py::arg("future_class"));
}

}  // namespace rrpc::bind::direct
