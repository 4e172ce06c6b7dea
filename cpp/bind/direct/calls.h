// A worker's loop: takes a server's calls and carries those out without Python's help whose methods are compiled.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bind/direct/surrounding.h"
#include "bind/plan/compiled_plan.h"
#include "driver/server.h"

namespace rrpc::bind::direct {

namespace py = pybind11;

// For one worker, in its thread. Python gets each call that isn't plain: of another method, with arguments that need a
// conversion or are wrong, with streams, with a trace.
class DirectCalls {
 public:
  // `handlers`: of names as bytes, (function, CompiledPlan, names of keywords).
  DirectCalls(const py::object& core, const py::dict& handlers);
  ~DirectCalls();
  DirectCalls(const DirectCalls&) = delete;
  DirectCalls& operator=(const DirectCalls&) = delete;

  // The next call for Python; None where the server has ended, or none came for `idle_s` seconds. The worker, in
  // Python, answers the calls whose handler fails, or whose result or context needs more than packing.
  py::object next(py::handle worker, py::handle idle_s, bool builtin);
  // Answers the call with a result, then the same.
  py::object reply_next(py::handle worker, uint64_t handle, const py::bytes& payload, bool builtin);
  // The name of the method that runs, or None.
  py::object running() const;

 private:
  struct Handler {
    py::bytes name;
    py::object function;
    std::shared_ptr<const plan::CompiledPlan> plan;
    py::tuple keywords;  // the names of the last arguments, where they are taken by keyword only
  };
  struct Answer {
    uint64_t handle = 0;
    std::string payload;
    std::vector<endpoint::Buffer> buffers;
    bool due = false;
    bool direct = false;  // of a call that was carried out here
  };
  // What the result is measured by: the sizes of named dimensions, and for Python the arguments that have them.
  struct Running {
    std::vector<py::object> arguments;
    plan::Sizes sizes;
  };
  struct Outcome;

  py::object serve(py::handle worker, py::handle idle_s, driver::Lane lane, Answer& answer);
  Outcome answer_and_wait(Answer& answer, driver::Work& work, TimeNs deadline, driver::Lane lane);
  const Handler* handler_of(const driver::Work& work) const;
  bool carry_out(py::handle worker, const Handler& handler, driver::Work& work, py::object& blocks, Answer& answer);
  void enter(const Handler& handler, const driver::Work& work);
  bool begin(const Handler& handler, const driver::Work& work, const py::object& blocks, Running& running);
  bool pack(const Handler& handler, const py::object& result, Running& running, Answer& answer);
  void leave(py::handle worker, const Handler& handler, const py::object& result, Running& running);
  void fail(py::handle worker, const Handler& handler);

  const py::object core_;
  const std::shared_ptr<driver::Server> server_;
  std::unordered_map<std::string_view, Handler> handlers_;  // by names that the handlers keep
  CurrentCall* current_ = nullptr;                          // owned; of the call that runs, or ran last
  const Handler* running_ = nullptr;
};

}  // namespace rrpc::bind::direct
