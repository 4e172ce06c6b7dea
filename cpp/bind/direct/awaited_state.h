// The insides of a coroutine that is a plain call: awaited.cc has its steps, awaited_type.cc what Python sees of it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bind/direct/method.h"
#include "bind/direct/outgoing.h"
#include "bind/loop.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// The end of a call that is awaited, or, without a target, that was awaited until its task was cancelled.
class AwaitedCall final : public driver::LoopCall {
 public:
  using LoopCall::LoopCall;
  void deliver(void* to) override;
  void tell(PyObject* target) { target_.set(py::reinterpret_borrow<py::object>(target)); }
  PyObject* target() const { return target_.get(); }  // borrowed
  py::object take_target() { return target_.take(); }

 private:
  LoopTarget target_;
};

enum class Stage : uint8_t {
  kNew,
  kWaiting,    // for the reply; it is the future that its task waits for
  kElsewhere,  // Python makes the call: `inner` is awaited
  kEnded
};

// Used in the loop's thread; guarded by the coroutine's section against others that misuse it.
struct Progress {
  py::object method;  // a DirectMethod, or null once ended
  Given given;        // owned here
  Stage stage = Stage::kNew;
  bool blocking = false;   // as asyncio's futures have it: yielded, and not yet taken up by the task
  bool done = false;       // the reply is here, or the task was cancelled
  bool cancelled = false;  // by cancel()
  py::object driver;       // a LoopDriver
  std::shared_ptr<driver::Client> client;
  std::shared_ptr<AwaitedCall> call;
  plan::Sizes sizes;
  TimeNs deadline = kNever;
  py::object callback, context;  // of the task
  py::object message;            // of cancel()
  py::object inner;
};

struct Awaited {
  PyObject_HEAD;
  PyObject* references;  // weak ones
  Progress state;
};

inline Progress& state_of(PyObject* self) { return reinterpret_cast<Awaited*>(self)->state; }
inline const DirectMethod& method_of(const Progress& state) {
  return *reinterpret_cast<const DirectMethod*>(state.method.ptr());
}
inline size_t count_of(const Progress& state) { return method_of(state).binding->plan->arguments.size(); }

inline PyLoopDriver& driver_of(const Progress& state) { return py::cast<PyLoopDriver&>(state.driver); }

// Lets go of everything: the coroutine can't go on.
void end(Progress& state);
// Has the server told that nobody waits for the reply any more, unless it is here.
void cancel_call(const Progress& state);

// As coroutines' methods have it; sent() is the slot am_send.
PySendResult sent(PyObject* self, PyObject* value, PyObject** result);
PyObject* send(PyObject* self, PyObject* value);
PyObject* throw_in(PyObject* self, PyObject* args);
PyObject* close(PyObject* self, PyObject*);

void make_awaited_names();

}  // namespace rrpc::bind::direct
