#include "bind/direct/handlers.h"

#include <array>
#include <exception>
#include <utility>

#include "bind/convert.h"
#include "bind/plan/python.h"
#include "bind/plan/threads.h"
#include "bind/request.h"
#include "bind/share.h"

namespace rrpc::bind::direct {

Handlers::Handlers(const py::object& core, const py::dict& handlers) : core_(core), server_(server_of(core)) {
  for (const auto& [name, pair] : handlers) {
    const auto parts = pair.cast<py::tuple>();
    Handler handler{name.cast<py::bytes>(), parts[0], parts[1].cast<std::shared_ptr<plan::CompiledPlan>>(),
                    parts[2].cast<py::tuple>(), driver::LongestTime()};
    const std::string_view key = as_text(bytes_view(handler.name));
    handlers_.emplace(key, std::move(handler));
  }
}

Handlers::~Handlers() {
  Py_XDECREF(reinterpret_cast<PyObject*>(current_));
  Py_XDECREF(reinterpret_cast<PyObject*>(spare_));
}

py::object Handlers::running() const {
  const Handler* const handler = running_.load(std::memory_order_relaxed);
  if (handler == nullptr) return py::none();
  return handler->name;
}

Handler* Handlers::handler_of(const driver::Work& work) {
  if (work.resumed || work.call->kind() != 0) return nullptr;
  const auto found = handlers_.find(work.call->method());
  return found == handlers_.end() || is_traced(*work.call) ? nullptr : &found->second;
}

// False: nothing was done, and Python is to do it; without memory, too, which it tells the caller.
bool Handlers::begin(const Handler& handler, const driver::Work& work, const py::object& blocks, PyObject* task,
                     Running& running) {
  try {
    if (!plan::read_list(handler.plan->arguments, as_text(work.call->payload()), blocks, running.arguments,
                         running.sizes))
      return false;
    enter(handler, work, task);
    return true;
  } catch (const std::exception&) {
    PyErr_Clear();
    return false;
  }
}

py::object Handlers::run(const Handler& handler, Running& running) {
  std::array<PyObject*, plan::kArgumentsMax> borrowed{};
  const size_t count = running.arguments.size(), by_place = count - handler.keywords.size();
  for (size_t i = 0; i < count; ++i) borrowed.at(i) = running.arguments[i].ptr();
  running_.store(&handler, std::memory_order_relaxed);
  PyObject* const keywords = by_place == count ? nullptr : handler.keywords.ptr();
  auto result = py::reinterpret_steal<py::object>(
      call_python([&] { return PyObject_Vectorcall(handler.function.ptr(), borrowed.data(), by_place, keywords); }));
  running_.store(nullptr, std::memory_order_relaxed);
  if (!handler.plan->named) running.arguments.clear();
  return result;
}

PySendResult Handlers::send_first(const Handler& handler, PyObject* coroutine, PyObject** result) {
  running_.store(&handler, std::memory_order_relaxed);
  const PySendResult how = call_python([&] { return PyIter_Send(coroutine, Py_None, result); });
  running_.store(nullptr, std::memory_order_relaxed);
  return how;
}

void Handlers::forget_current() { Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(current_, nullptr))); }

// One for each call: whoever has copied the context variable since (a thread, a task) sees what the call was, and that
// it has ended. One that nobody has copied is the next call's but one.
void Handlers::enter(const Handler& handler, const driver::Work& work, PyObject* task) {
  py::bytes metadata = bytes_of(as_text(work.call->metadata()));
  CurrentCall& call = spare_ == nullptr ? make_current_call() : *std::exchange(spare_, nullptr);
  call.core = Py_NewRef(core_.ptr());
  call.name = Py_NewRef(handler.name.ptr());
  call.metadata = metadata.release().ptr();
  call.task = Py_XNewRef(task);
  call.handle = work.handle;
  call.deadline = work.call->deadline();
  PyObject* const token = PyContextVar_Set(context_variable(), reinterpret_cast<PyObject*>(&call));
  Py_XDECREF(token);
  CurrentCall* const free = recycled(token == nullptr ? &call : std::exchange(current_, &call));
  Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(spare_, free)));
  if (token == nullptr) throw py::error_already_set();
}

void Handlers::conclude(py::handle taker, const Handler& handler, const py::object& result, Running& running,
                        Answer& answer) {
  answer.handle = current_->handle;
  if (!pack(handler, result, running, answer)) leave(taker, handler, result, running);
}

void Handlers::leave(py::handle taker, const Handler& handler, const py::object& result, Running& running) {
  taker.attr("_answer")(current_->handle, handler.name, context_of(*current_), result, list_of(running.arguments));
  end(*current_);
}

bool Handlers::pack(const Handler& handler, const py::object& result, Running& running, Answer& answer) {
  const auto context = py::reinterpret_borrow<py::object>(current_->context.load(kOrdered));
  try {
    if (context && (py::len(context.attr("sent")) != 0 || !context.attr("on_end").is_none())) return false;
    plan::Packed& packed = answer.packed;
    packed.payload.clear(plan::kPayloadKeptBytes);
    const bool known = plan::pack_value(handler.plan->result, result.ptr(), packed, running.sizes);
    if (known) answer.buffers = export_buffers(packed.buffers);
    packed.buffers.clear();
    if (!known) return false;
    end(*current_);
  } catch (const std::exception&) {
    PyErr_Clear();
    answer.packed.buffers.clear();
    answer.buffers.clear();
    return false;
  }
  answer.due = answer.direct = true;
  return true;
}

void Handlers::fail(py::handle taker, const Handler& handler) {
  const py::object error = exception_of(py::error_already_set());
  taker.attr("_failed")(current_->handle, handler.name, error, context_of(*current_));
  end(*current_);
}

Status Handlers::reply(Answer& answer, Status& answered, driver::HeldReplies* held) {
  rpc::Reply reply;
  reply.payload = answer.packed.payload.view();
  reply.buffers = std::move(answer.buffers);
  answer.due = false;
  auto outcome = server_->reply(answer.handle, std::move(reply), held);
  answered = outcome.status();
  answer.packed.payload.clear(plan::kPayloadKeptBytes);
  if (outcome.ok() && answer.direct && answer.by != nullptr) answer.by->longest.took(outcome->took);
  return outcome.ok() ? outcome->instead : Status();
}

void Handlers::tell_not_sent(py::handle taker, const Status& instead) {
  taker.attr("_not_sent")(context_of(*current_), static_cast<int>(instead.code()), text_of(instead.message()));
}

}  // namespace rrpc::bind::direct
