// A worker's loop: takes a server's calls and carries those out without Python's help whose methods are compiled.
#pragma once

#include <pybind11/pybind11.h>

#include "bind/direct/handlers.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// For one worker, in its thread. Python gets each call that isn't plain: of another method, with arguments that need a
// conversion or are wrong, with streams, with a trace.
class DirectCalls : public Handlers {
 public:
  using Handlers::Handlers;

  // The next call for Python; None where the server has ended, or none came for `idle_s` seconds.
  py::object next(py::handle worker, py::handle idle_s, bool builtin);
  // Answers the call with a result, then the same.
  py::object reply_next(py::handle worker, uint64_t handle, const py::bytes& payload, bool builtin);

 private:
  struct Outcome;

  py::object serve(py::handle worker, py::handle idle_s, driver::Lane lane, Answer& answer);
  Outcome answer_and_wait(Answer& answer, driver::Work& work, TimeNs deadline, driver::Lane lane);
  void send_held();
  bool carry_out(py::handle worker, Handler& handler, driver::Work& work, py::object& blocks, Answer& answer);

  driver::HeldReplies held_;  // the server lives longer
};

}  // namespace rrpc::bind::direct
