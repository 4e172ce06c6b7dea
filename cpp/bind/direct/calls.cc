#include "bind/direct/calls.h"

#include <array>
#include <exception>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/plan/python.h"
#include "bind/register.h"
#include "bind/request.h"
#include "bind/share.h"

namespace rrpc::bind::direct {

using driver::NextResult;

struct DirectCalls::Outcome {
  NextResult next = NextResult::kTimeout;
  Status answered;  // NotFound for a handle that nobody has
  Status instead;   // what the client gets in place of the result
};

DirectCalls::DirectCalls(const py::object& core, const py::dict& handlers) : core_(core), server_(server_of(core)) {
  for (const auto& [name, pair] : handlers) {
    const auto parts = pair.cast<py::tuple>();
    Handler handler{name.cast<py::bytes>(), parts[0], parts[1].cast<std::shared_ptr<plan::CompiledPlan>>(),
                    parts[2].cast<py::tuple>()};
    const std::string_view key = as_text(bytes_view(handler.name));
    handlers_.emplace(key, std::move(handler));
  }
}

DirectCalls::~DirectCalls() { Py_XDECREF(reinterpret_cast<PyObject*>(current_)); }

py::object DirectCalls::next(py::handle worker, py::handle idle_s, bool builtin) {
  Answer none;
  return serve(worker, idle_s, builtin ? driver::Lane::kBuiltin : driver::Lane::kWorkers, none);
}

py::object DirectCalls::reply_next(py::handle worker, uint64_t handle, const py::bytes& payload, bool builtin) {
  Answer answer;
  answer.handle = handle;
  answer.payload = as_text(bytes_view(payload));
  answer.due = true;
  return serve(worker, py::none(), builtin ? driver::Lane::kBuiltin : driver::Lane::kWorkers, answer);
}

py::object DirectCalls::running() const {
  if (running_ == nullptr) return py::none();
  return running_->name;
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
    if (!outcome.instead.ok() && answer.direct)
      worker.attr("_not_sent")(context_of(*current_), static_cast<int>(outcome.instead.code()),
                               text_of(outcome.instead.message()));
    if (outcome.next == NextResult::kInterrupted) continue;
    if (outcome.next != NextResult::kWork) return py::none();
    const Handler* const handler = handler_of(work);
    if (handler == nullptr) return request_of(work);
    py::object blocks = wrap_blocks(work.call->blocks());
    if (!carry_out(worker, *handler, work, blocks, answer)) return request_of(work, std::move(blocks));
    deadline = deadline_from(idle_s);
  }
}

// Without the GIL all the while, which a client that is quick would else have to be waited for twice.
DirectCalls::Outcome DirectCalls::answer_and_wait(Answer& answer, driver::Work& work, TimeNs deadline,
                                                  driver::Lane lane) {
  Outcome outcome;
  rpc::Reply reply;
  if (answer.due) {
    reply.payload = as_bytes(answer.payload);
    reply.buffers = std::move(answer.buffers);
  }
  const WithoutGil freed;
  if (std::exchange(answer.due, false)) {
    auto answered = server_->reply(answer.handle, std::move(reply));
    outcome.answered = answered.status();
    if (answered.ok()) outcome.instead = answered->instead;
    if (!outcome.answered.ok() || !outcome.instead.ok()) {
      outcome.next = NextResult::kInterrupted;  // that is told first
      return outcome;
    }
  }
  outcome.next = server_->next(work, deadline, g_deferred_pending, lane);
  return outcome;
}

const DirectCalls::Handler* DirectCalls::handler_of(const driver::Work& work) const {
  if (work.resumed || work.call->kind() != 0) return nullptr;
  const auto found = handlers_.find(work.call->method());
  return found == handlers_.end() || is_traced(*work.call) ? nullptr : &found->second;
}

// False: nothing was done, and Python is to do it; without memory, too, which it tells the caller.
bool DirectCalls::begin(const Handler& handler, const driver::Work& work, const py::object& blocks, Running& running) {
  try {
    if (!plan::read_list(handler.plan->arguments, as_text(work.call->payload()), blocks, running.arguments,
                         running.sizes))
      return false;
    enter(handler, work);
    return true;
  } catch (const std::exception&) {
    PyErr_Clear();
    return false;
  }
}

bool DirectCalls::carry_out(py::handle worker, const Handler& handler, driver::Work& work, py::object& blocks,
                            Answer& answer) {
  Running running;
  if (!begin(handler, work, blocks, running)) return false;
  blocks = py::none();
  std::array<PyObject*, plan::kArgumentsMax> borrowed{};
  const size_t count = running.arguments.size(), by_place = count - handler.keywords.size();
  for (size_t i = 0; i < count; ++i) borrowed.at(i) = running.arguments[i].ptr();
  running_ = &handler;
  PyObject* const keywords = by_place == count ? nullptr : handler.keywords.ptr();
  auto result = py::reinterpret_steal<py::object>(
      call_python([&] { return PyObject_Vectorcall(handler.function.ptr(), borrowed.data(), by_place, keywords); }));
  running_ = nullptr;
  if (!handler.plan->named) running.arguments.clear();
  answer.handle = work.handle;
  if (!result)
    fail(worker, handler);
  else if (pack(handler, result, running, answer))
    answer.due = answer.direct = true;
  else
    leave(worker, handler, result, running);
  return true;
}

// One for each call: whoever has copied the context variable since (a thread, a task) sees what the call was, and that
// it has ended.
void DirectCalls::enter(const Handler& handler, const driver::Work& work) {
  PyTypeObject* const type = current_call_type();
  const auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
  if (!made) throw py::error_already_set();
  auto& call = *reinterpret_cast<CurrentCall*>(made.ptr());
  call.core = Py_NewRef(core_.ptr());
  call.name = Py_NewRef(handler.name.ptr());
  call.metadata = bytes_of(as_text(work.call->metadata())).release().ptr();
  call.handle = work.handle;
  call.deadline = work.call->deadline();
  PyObject* const token = PyContextVar_Set(context_variable(), made.ptr());
  if (token == nullptr) throw py::error_already_set();
  Py_DECREF(token);
  Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(current_, &call)));
  made.inc_ref();
}

// False where Python is to answer.
bool DirectCalls::pack(const Handler& handler, const py::object& result, Running& running, Answer& answer) {
  const auto context = py::reinterpret_borrow<py::object>(current_->context);
  try {
    if (context && (py::len(context.attr("sent")) != 0 || !context.attr("on_end").is_none())) return false;
    plan::Packed packed;
    if (!plan::pack_value(handler.plan->result, result.ptr(), packed, running.sizes)) return false;
    for (const py::object& buffer : packed.buffers) answer.buffers.push_back(export_buffer(buffer, false));
    answer.payload = std::move(packed.payload);
    if (context) context.attr("ended") = true;
  } catch (const std::exception&) {
    PyErr_Clear();
    answer.buffers.clear();
    return false;
  }
  current_->ended = true;
  return true;
}

void DirectCalls::leave(py::handle worker, const Handler& handler, const py::object& result, Running& running) {
  py::list arguments;
  for (py::object& argument : running.arguments) arguments.append(std::move(argument));
  worker.attr("_answer")(current_->handle, handler.name, context_of(*current_), result, std::move(arguments));
  current_->ended = true;
}

void DirectCalls::fail(py::handle worker, const Handler& handler) {
  py::error_already_set raised;
  const py::object& error = raised.value();
  if (raised.trace()) PyException_SetTraceback(error.ptr(), raised.trace().ptr());
  worker.attr("_failed")(current_->handle, handler.name, error, context_of(*current_));
  current_->ended = true;
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
