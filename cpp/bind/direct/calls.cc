#include "bind/direct/calls.h"

#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/register.h"
#include "bind/request.h"
#include "bind/share.h"

namespace rrpc::bind::direct {

using driver::NextResult;

struct DirectCalls::Outcome {
  NextResult next = NextResult::kTimeout;
  Handler* handler = nullptr;  // of the next call; null: Python has a part in it
  Status answered;             // NotFound for a handle that nobody has
  Status instead;              // what the client gets in place of the result
};

py::object DirectCalls::next(py::handle worker, py::handle idle_s, bool builtin) {
  Answer none;
  return serve(worker, idle_s, builtin ? driver::Lane::kBuiltin : driver::Lane::kWorkers, none);
}

py::object DirectCalls::reply_next(py::handle worker, uint64_t handle, const py::bytes& payload, bool builtin) {
  Answer answer;
  answer.handle = handle;
  answer.packed.payload.append(bytes_view(payload));
  answer.due = true;
  return serve(worker, py::none(), builtin ? driver::Lane::kBuiltin : driver::Lane::kWorkers, answer);
}

py::object DirectCalls::serve(py::handle worker, py::handle idle_s, driver::Lane lane, Answer& answer) {
  server_of(core_);  // which refuses it in a forked child
  TimeNs deadline = deadline_from(idle_s);
  while (true) {
    driver::Work work;
    const Outcome outcome = answer_and_wait(answer, work, deadline, lane);
    check_signals(outcome.next == NextResult::kInterrupted, server_->engine());
    run_deferred();
    raise_if_error(outcome.answered);
    if (!outcome.instead.ok() && answer.direct) tell_not_sent(worker, outcome.instead);
    if (outcome.next == NextResult::kInterrupted) continue;
    if (outcome.next != NextResult::kWork) return py::none();
    if (outcome.handler == nullptr) return request_of(work);
    py::object blocks = wrap_blocks(work.call->blocks());
    if (!carry_out(worker, *outcome.handler, work, blocks, answer)) {
      send_held();
      return request_of(work, std::move(blocks));
    }
    deadline = deadline_from(idle_s);
  }
}

// Without the GIL all the while, which a client that is quick would else have to be waited for twice.
DirectCalls::Outcome DirectCalls::answer_and_wait(Answer& answer, driver::Work& work, TimeNs deadline,
                                                  driver::Lane lane) {
  Outcome outcome;
  const WithoutGil freed;
  if (answer.due) {
    outcome.instead = reply(answer, outcome.answered, &held_);
    if (!outcome.answered.ok() || !outcome.instead.ok()) {
      held_.ring();
      outcome.next = NextResult::kInterrupted;  // that is told first
      return outcome;
    }
  }
  outcome.next = server_->next(work, deadline, g_deferred_pending, lane, &held_);
  if (outcome.next == NextResult::kWork) outcome.handler = handler_of(work);
  if (held_.empty()) return outcome;
  // Until the next reply is there no user's code may run but a quick handler's.
  const bool may_wait = outcome.handler != nullptr && held_.may_wait_for(outcome.handler->longest, work.taken_at);
  if (!may_wait || g_deferred_pending.load()) held_.ring();
  return outcome;
}

void DirectCalls::send_held() {
  if (held_.empty()) return;
  const WithoutGil freed;
  held_.ring();
}

bool DirectCalls::carry_out(py::handle worker, Handler& handler, driver::Work& work, py::object& blocks,
                            Answer& answer) {
  Running running;
  if (!begin(handler, work, blocks, nullptr, running)) return false;
  blocks = py::none();
  const py::object result = run(handler, running);
  answer.handle = work.handle;
  answer.by = &handler;
  if (result && pack(handler, result, running, answer)) return true;
  send_held();
  if (result)
    leave(worker, handler, result, running);
  else
    fail(worker, handler);
  return true;
}

void register_calls(py::module_& module) {
  module.def("set_context", &set_context, py::arg("variable"), py::arg("context_class"));
  module.attr("CurrentCall") =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(make_current_call_type()));
  py::class_<DirectCalls>(module, "DirectCalls")
      .def(py::init<const py::object&, const py::dict&>(), py::arg("core"), py::arg("handlers"))
      .def("next", &DirectCalls::next, py::arg("worker"), py::arg("idle_s") = py::none(), py::arg("builtin") = false)
      .def("reply_next", &DirectCalls::reply_next, py::arg("worker"), py::arg("handle"), py::arg("payload"),
           py::arg("builtin") = false)
      .def("running", &DirectCalls::running);
}

}  // namespace rrpc::bind::direct
