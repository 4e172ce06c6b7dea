// The steps of a plain call of an asyncio client: it begins where it is awaited, waits for its reply, and ends.
#include <memory>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/direct/awaited_state.h"
#include "bind/direct/slots.h"
#include "bind/direct/surrounding.h"
#include "bind/gil.h"
#include "bind/plan/threads.h"

namespace rrpc::bind::direct {
namespace {

PyObject *g_await = nullptr, *g_throw = nullptr, *g_close = nullptr;  // interned names

void let_go_of_arguments(Progress& state) {
  Given given = std::exchange(state.given, Given());
  for (PyObject*& value : given.values) Py_CLEAR(value);
  if (given.metadata != Py_None) Py_DECREF(given.metadata);
}

}  // namespace

void end(Progress& state) {
  state.stage = Stage::kEnded;
  state.blocking = false;
  const py::object gone[] = {std::move(state.method),  std::move(state.driver), std::move(state.callback),
                             std::move(state.context), std::move(state.inner),  std::move(state.message)};
  let_go_of_arguments(state);
}

void cancel_call(const Progress& state) {
  const std::shared_ptr<driver::Client> client = state.client;
  const std::shared_ptr<AwaitedCall> call = state.call;
  if (client == nullptr || call->done()) return;
  {
    const WithoutGil freed;
    client->cancel(call, cancelled("the call was cancelled by its caller"));
  }
  release_deferred(client->engine());
}

void AwaitedCall::deliver(void* to) {
  const py::object target = target_.take();
  if (!target) return;
  py::object callback, context;
  {
    const Section section(target);
    Progress& state = state_of(target.ptr());
    if (state.stage != Stage::kWaiting || std::exchange(state.done, true)) return;
    callback = std::exchange(state.callback, py::object());
    context = std::exchange(state.context, py::object());
  }
  if (callback) static_cast<PyLoopDriver*>(to)->wake(callback.ptr(), target.ptr(), context.ptr());
}

namespace {

// Goes on with what `state.inner` awaits. `sent` is borrowed.
PySendResult send_elsewhere(Progress& state, PyObject* sent, PyObject** result) {
  const py::object inner = state.inner;
  const PySendResult how = PyIter_Send(inner.ptr(), sent, result);
  if (how != PYGEN_NEXT) end(state);
  return how;
}

// Awaits `awaitable`, a new reference or null with an exception, in this one's place.
PySendResult go_elsewhere(Progress& state, PyObject* awaitable, PyObject** result) {
  const auto owned = py::reinterpret_steal<py::object>(awaitable);
  if (!owned) throw py::error_already_set();
  state.inner = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(owned.ptr(), g_await));
  if (!state.inner) throw py::error_already_set();
  state.stage = Stage::kElsewhere;
  let_go_of_arguments(state);
  return send_elsewhere(state, Py_None, result);
}

PySendResult call_stub(Progress& state, PyObject** result) {
  const auto& method = method_of(state);
  const py::tuple arguments = tuple_of(state.given, count_of(state));
  const py::object left = state.given.timeout == kNever
                              ? py::object(py::none())
                              : py::object(py::float_(static_cast<double>(state.given.timeout) / kSecond));
  return go_elsewhere(
      state, PyObject_CallMethod(method.stub, "_start", "OOO", arguments.ptr(), left.ptr(), state.given.metadata),
      result);
}

// The call has ended: gives its result, or has Python see to its failure.
PySendResult finish(Progress& state, const Status& begun, PyObject** result) {
  const std::shared_ptr<AwaitedCall> call = state.call;
  const auto& method = method_of(state);
  if (begun.ok() && call->status().ok()) {
    const std::shared_ptr<const plan::CompiledPlan> plan = method.binding->plan;
    *result = result_of(method.stub, *plan, *call, state.given, state.sizes);
    if (*result == nullptr) throw py::error_already_set();
    end(state);
    return PYGEN_RETURN;
  }
  const py::tuple arguments = tuple_of(state.given, count_of(state));
  return go_elsewhere(state,
                      otherwise(method.stub, g_stub_names.otherwise, error_of(*call, begun), arguments, state.deadline,
                                state.given.metadata),
                      result);
}

PySendResult begin(PyObject* self, PyObject** result) {
  Progress& state = state_of(self);
  Prepared prepared;
  state.driver = running_driver();
  if (!state.driver || !prepare(*method_of(state).binding, state.given, prepared)) return call_stub(state, result);
  PyLoopDriver& driver = driver_of(state);
  state.call = std::make_shared<AwaitedCall>(driver.queue());
  rpc::CallRequest request = request_of(prepared);
  state.client = prepared.client;
  state.sizes = prepared.sizes;
  state.deadline = prepared.deadline;
  driver.poll_soon();
  const bool waits_here = driver.may_wait_here();
  Status begun;
  bool came = false;
  {
    const WithoutGil freed;
    begun = state.client->start_in_loop(state.call, std::move(request));
    came = begun.ok() && waits_here && driver.wait_here(*state.call);
  }
  release_deferred(state.client->engine());
  if (!begun.ok() || came) return finish(state, begun, result);
  state.call->tell(self);
  state.stage = Stage::kWaiting;
  state.blocking = true;
  *result = Py_NewRef(self);
  return PYGEN_NEXT;
}

PySendResult send_or_throw(PyObject* self, PyObject* sent, PyObject** result) {
  Progress& state = state_of(self);
  switch (state.stage) {
    case Stage::kNew:
      if (sent == Py_None) return begin(self, result);
      PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
      return PYGEN_ERROR;
    case Stage::kWaiting:
      if (state.done) return finish(state, Status(), result);
      PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
      return PYGEN_ERROR;
    case Stage::kElsewhere:
      return send_elsewhere(state, sent, result);
    case Stage::kEnded:
      break;
  }
  PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
  return PYGEN_ERROR;
}

}  // namespace

PySendResult sent(PyObject* self, PyObject* value, PyObject** result) {
  const auto held = py::reinterpret_borrow<py::object>(self);
  const Section section(self);
  *result = nullptr;
  auto how = PYGEN_ERROR;
  const PyObject* const ok = without_throwing([&]() -> PyObject* {
    how = send_or_throw(self, value == nullptr ? Py_None : value, result);
    return self;
  });
  if (ok != nullptr) return how;
  end(state_of(self));
  return PYGEN_ERROR;
}

PyObject* send(PyObject* self, PyObject* value) {
  PyObject* result = nullptr;
  const PySendResult how = sent(self, value, &result);
  if (how != PYGEN_RETURN) return result;
  const auto returned = py::reinterpret_steal<py::object>(result);
  const auto stop = py::reinterpret_steal<py::object>(PyObject_CallOneArg(PyExc_StopIteration, returned.ptr()));
  if (stop) PyErr_SetObject(PyExc_StopIteration, stop.ptr());
  return nullptr;
}

namespace {

// The arguments of throw(), by the rules of Python's coroutines.
struct Thrown {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;  // borrowed
};

// False: with Python's exception set.
bool read_thrown(PyObject* args, Thrown& thrown) {
  if (PyArg_UnpackTuple(args, "throw", 1, 3, &thrown.type, &thrown.value, &thrown.traceback) == 0) return false;
  if (thrown.value == Py_None) thrown.value = nullptr;
  if (thrown.traceback == Py_None) thrown.traceback = nullptr;
  const char* wrong = nullptr;
  if (thrown.traceback != nullptr && !PyTraceBack_Check(thrown.traceback))
    wrong = "throw() third argument must be a traceback object";
  else if (PyExceptionInstance_Check(thrown.type) && thrown.value != nullptr)
    wrong = "instance exception may not have a separate value";
  if (wrong != nullptr) {
    PyErr_SetString(PyExc_TypeError, wrong);
    return false;
  }
  if (PyExceptionInstance_Check(thrown.type) || PyExceptionClass_Check(thrown.type)) return true;
  PyErr_Format(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException, not %s",
               Py_TYPE(thrown.type)->tp_name);
  return false;
}

// Sets Python's exception, whose context is the one that is handled now.
void raise_thrown(const Thrown& thrown) {
  const bool instance = PyExceptionInstance_Check(thrown.type);
  PyObject* type = Py_NewRef(instance ? PyExceptionInstance_Class(thrown.type) : thrown.type);
  PyObject* value = instance ? Py_NewRef(thrown.type) : Py_XNewRef(thrown.value);
  PyObject* traceback = Py_XNewRef(thrown.traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  PyErr_SetObject(type, value);
  Py_DECREF(type);
  Py_DECREF(value);
  Py_XDECREF(traceback);
}

}  // namespace

PyObject* throw_in(PyObject* self, PyObject* args) {
  const auto held = py::reinterpret_borrow<py::object>(self);
  Thrown thrown;
  if (!read_thrown(args, thrown)) return nullptr;
  const Section section(self);
  Progress& state = state_of(self);
  if (state.stage == Stage::kElsewhere) {
    const py::object inner = state.inner;
    PyObject* const method = PyObject_GetAttr(inner.ptr(), g_throw);
    PyObject* const result = method == nullptr ? nullptr : PyObject_CallObject(method, args);
    Py_XDECREF(method);
    if (result == nullptr) end(state);
    return result;
  }
  if (state.stage == Stage::kEnded) {
    PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    return nullptr;
  }
  if (state.stage == Stage::kWaiting && !state.done) cancel_call(state);
  end(state);
  raise_thrown(thrown);
  return nullptr;
}

PyObject* close(PyObject* self, PyObject*) {
  const auto held = py::reinterpret_borrow<py::object>(self);
  const Section section(self);
  Progress& state = state_of(self);
  if (state.stage == Stage::kWaiting && !state.done) cancel_call(state);
  const py::object inner = state.stage == Stage::kElsewhere ? state.inner : py::object();
  if (state.stage != Stage::kEnded) end(state);
  if (inner && PyObject_HasAttr(inner.ptr(), g_close) != 0) return PyObject_CallMethodNoArgs(inner.ptr(), g_close);
  return Py_NewRef(Py_None);
}

void make_awaited_names() {
  g_await = PyUnicode_InternFromString("__await__");
  g_throw = PyUnicode_InternFromString("throw");
  g_close = PyUnicode_InternFromString("close");
}

}  // namespace rrpc::bind::direct
