#include "bind/direct/loop_calls.h"

#include <utility>
#include <vector>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/register.h"
#include "bind/request.h"
#include "bind/share.h"

namespace rrpc::bind::direct {
namespace {

// Calls are taken and carried out for so long; then the loop goes round. As in rrpc/aio/fairness.py.
constexpr TimeNs kTurnMax = 2 * kMillisecond;

PyObject *g_must_cancel = nullptr, *g_cancelling = nullptr;  // interned names

// Returns whether both contexts have the same variables with identical values. The values' own == could raise, or give
// an array.
bool are_same(PyObject* one, PyObject* other) {
  if (PyObject_Size(one) != PyObject_Size(other)) return false;
  const auto variables = py::reinterpret_steal<py::object>(PyObject_GetIter(one));
  if (!variables) return false;
  while (const auto variable = py::reinterpret_steal<py::object>(PyIter_Next(variables.ptr()))) {
    const auto here = py::reinterpret_steal<py::object>(PyObject_GetItem(one, variable.ptr()));
    const auto there = py::reinterpret_steal<py::object>(PyObject_GetItem(other, variable.ptr()));
    if (!there || !here.is(there)) return false;
  }
  return PyErr_Occurred() == nullptr;
}

// Tasks that aren't asyncio's own may lack these attributes, and Python 3.10 has no cancelling().
bool is_being_cancelled(PyObject* task) {
  const auto must_cancel = py::reinterpret_steal<py::object>(PyObject_GetAttr(task, g_must_cancel));
  PyErr_Clear();
  if (must_cancel && !must_cancel.is(py::handle(Py_False))) return true;
#if PY_VERSION_HEX >= 0x030b0000
  const auto cancels = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(task, g_cancelling));
  PyErr_Clear();
  return cancels && PyObject_IsTrue(cancels.ptr()) == 1;
#else
  return false;
#endif
}

// The context that a handler changed, and a cancel of the task that it asked for, would be the next handler's.
bool is_clean(py::handle task, py::handle clean) {
  const auto token = py::reinterpret_steal<py::object>(PyContextVar_Set(context_variable(), Py_None));
  const auto now = py::reinterpret_steal<py::object>(PyContext_CopyCurrent());
  const bool same = token && now && are_same(now.ptr(), clean.ptr());
  PyErr_Clear();
  return same && !is_being_cancelled(task.ptr());
}

}  // namespace

LoopCalls::LoopCalls(const py::object& core, const py::dict& handlers, py::object driver)
    : Handlers(core, handlers), driver_(std::move(driver)), news_(loop_news_of(core)) {}

void LoopCalls::take() {
  server_of(core_);  // which refuses it in a forked child
  std::vector<driver::Work> taken;
  {
    const WithoutGil freed;
    taken = server_->next_in_loop();
  }
  for (driver::Work& work : taken) works_.push_back(std::move(work));
  if (!taken.empty()) driver_.cast<PyLoopDriver&>().poll_soon();
}

py::object LoopCalls::next(py::handle runner, py::handle task, py::handle clean) {
  Answer answer;
  py::object left = py::none();
  const TimeNs end = now_ns() + kTurnMax;
  while (true) {
    answer_and_take(runner, answer, works_.empty() && now_ns() < end);
    if (works_.empty()) break;
    driver::Work work = std::move(works_.front());
    works_.pop_front();
    const Handler* const handler = handler_of(work);
    py::object blocks = wrap_blocks(work.call->blocks());
    Running running;
    if (handler == nullptr || !begin(*handler, work, blocks, task.ptr(), running)) {
      left = request_of(work, std::move(blocks));
      break;
    }
    blocks = py::none();
    left = carry_out(runner, *handler, work.handle, running, answer);
    if (!left.is_none()) break;
    const bool goes_on = is_clean(task, clean);
    if (goes_on && (works_.empty() || now_ns() < end)) continue;
    answer_and_take(runner, answer, false);
    left = py::bool_(goes_on);
    break;
  }
  forget_current();
  return left;
}

// Runs the handler until it ends or waits; gives what next() does of one that waits, otherwise None.
py::object LoopCalls::carry_out(py::handle runner, const Handler& handler, uint64_t handle, Running& running,
                                Answer& answer) {
  const py::object coroutine = run(handler, running);
  if (!coroutine) {
    fail(runner, handler);
    return py::none();
  }
  const auto call = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&current()));
  PyObject* given = nullptr;
  const PySendResult how = send_first(handler, coroutine.ptr(), &given);
  const auto result = py::reinterpret_steal<py::object>(given);
  if (how == PYGEN_ERROR) {
    fail(runner, handler);
    return py::none();
  }
  if (how == PYGEN_RETURN) {
    conclude(runner, handler, result, running, answer);
    return py::none();
  }
  return py::make_tuple(handle, handler.name, context_of(*reinterpret_cast<CurrentCall*>(call.ptr())), coroutine,
                        result, list_of(running.arguments));
}

// Where nobody else wants the loop, the next call is polled for in the same crossing: it mostly comes soon.
void LoopCalls::answer_and_take(py::handle runner, Answer& answer, bool takes) {
  auto& driver = driver_.cast<PyLoopDriver&>();
  const bool waits = takes && answer.due && driver.may_wait_here();
  if (!answer.due && !takes) return;
  Status answered, instead;
  std::vector<driver::Work> taken;
  {
    const WithoutGil freed;
    if (answer.due) instead = reply(answer, answered);  // a call whose server has stopped meanwhile has no reply
    if (takes) taken = server_->next_in_loop();
    if (waits && taken.empty() && driver.wait_here(*news_)) taken = server_->next_in_loop();
  }
  for (driver::Work& work : taken) works_.push_back(std::move(work));
  driver.poll_on();
  release_deferred(server_->engine());
  if (!instead.ok()) tell_not_sent(runner, instead);
}

void register_loop_calls(py::module_& module) {
  g_must_cancel = PyUnicode_InternFromString("_must_cancel");
  g_cancelling = PyUnicode_InternFromString("cancelling");
  module.def("is_clean", &is_clean, py::arg("task"), py::arg("clean"));
  py::class_<LoopCalls>(module, "LoopCalls")
      .def(py::init<const py::object&, const py::dict&, py::object>(), py::arg("core"), py::arg("handlers"),
           py::arg("driver"))
      .def("take", &LoopCalls::take)
      .def("__len__", &LoopCalls::size)
      .def("next", &LoopCalls::next, py::arg("runner"), py::arg("task"), py::arg("clean"))
      .def("running", &LoopCalls::running);
}

}  // namespace rrpc::bind::direct
