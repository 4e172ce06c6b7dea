// The calls of a server's event loop: carries those out without Python's help whose async handlers are compiled.
#pragma once

#include <deque>

#include "bind/direct/handlers.h"
#include "bind/loop.h"

namespace rrpc::bind::direct {

// For one loop, in its thread.
class LoopCalls : public Handlers {
 public:
  // `driver` is the loop's, in which the server serves already.
  LoopCalls(const py::object& core, const py::dict& handlers, py::object driver);

  // Takes the calls that have come.
  void take();
  // Number of calls that were taken and that nobody has yet.
  size_t size() const { return works_.size(); }
  // Carries calls out, in the task that `runner` is of, and returns what Python has to do: a Request; of a handler that
  // waits, (handle, name, context, coroutine, what it waits for, arguments); False where a handler has left something
  // in the context, which was `clean`, or a cancel of the task; True where more calls are here but the loop has to go
  // round first; None where there is nothing more. The runner answers the calls whose handler fails, or whose result
  // or context needs more than packing.
  py::object next(py::handle runner, py::handle task, py::handle clean);

 private:
  py::object carry_out(py::handle runner, const Handler& handler, uint64_t handle, Running& running, Answer& answer);
  void answer_and_take(py::handle runner, Answer& answer, bool takes);

  const py::object driver_;
  const std::shared_ptr<PyLoopNews> news_;
  std::deque<driver::Work> works_;
};

}  // namespace rrpc::bind::direct
