// A server's compiled methods, and the steps in which a call of one is carried out: in a worker, or in an event loop.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
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

struct Handler {
  py::bytes name;
  py::object function;
  std::shared_ptr<const plan::CompiledPlan> plan;
  py::tuple keywords;  // the names of the last arguments, where they are taken by keyword only
  driver::LongestTime longest;
};

struct Answer {
  uint64_t handle = 0;
  plan::Packed packed;
  std::vector<endpoint::Buffer> buffers;  // those of `packed`, as they are sent
  bool due = false;
  bool direct = false;  // of a call that was carried out here
  Handler* by = nullptr;
};

// What the result is measured by: the sizes of named dimensions, and for Python the arguments that have them.
struct Running {
  plan::Values arguments;
  plan::Sizes sizes;
};

// The base of what carries calls out. `taker` is the object in Python that answers the calls whose handler fails, or
// whose result or context needs more than packing: by its methods _failed, _answer and _not_sent.
class Handlers {
 public:
  // `handlers`: of names as bytes, (function, CompiledPlan, names of keywords).
  Handlers(const py::object& core, const py::dict& handlers);
  ~Handlers();
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;

  // The name of the method that runs, or None. For any thread.
  py::object running() const;

 protected:
  // Null where Python has a part in the call.
  Handler* handler_of(const driver::Work& work);
  // False: nothing was done, and Python is to do it. Otherwise the context variable has the call, current(), whose task
  // is `task` or null.
  bool begin(const Handler& handler, const driver::Work& work, const py::object& blocks, PyObject* task,
             Running& running);
  py::object run(const Handler& handler, Running& running);
  // The first step of the coroutine that run() gave.
  PySendResult send_first(const Handler& handler, PyObject* coroutine, PyObject** result);
  // Packs the result into the answer, which is then due. False where Python is to answer: leave().
  bool pack(const Handler& handler, const py::object& result, Running& running, Answer& answer);
  void leave(py::handle taker, const Handler& handler, const py::object& result, Running& running);
  // One of the two.
  void conclude(py::handle taker, const Handler& handler, const py::object& result, Running& running, Answer& answer);
  // With Python's exception set.
  void fail(py::handle taker, const Handler& handler);
  // Answers; gives what the client gets in place of the result, or NotFound in `answered`. Without the GIL. The reply
  // may wait in `held`.
  Status reply(Answer& answer, Status& answered, driver::HeldReplies* held = nullptr);
  void tell_not_sent(py::handle taker, const Status& instead);
  CurrentCall& current() { return *current_; }
  void forget_current();

  const py::object core_;
  const std::shared_ptr<driver::Server> server_;

 private:
  void enter(const Handler& handler, const driver::Work& work, PyObject* task);

  std::unordered_map<std::string_view, Handler> handlers_;  // by names that the handlers keep
  CurrentCall* current_ = nullptr;                          // owned; of the call that runs, or ran last
  CurrentCall* spare_ = nullptr;                            // owned; of none
  std::atomic<const Handler*> running_{nullptr};
};

}  // namespace rrpc::bind::direct
