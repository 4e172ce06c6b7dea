// Items of a compiled plan, many of them in one crossing: none of rrpc's own Python runs for an item.
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/plan/compiled_plan.h"
#include "bind/plan/python.h"
#include "bind/register.h"
#include "bind/stream.h"

namespace rrpc::bind {
namespace {

constexpr TimeNs kYieldInterval = 5 * kMillisecond;  // Python's own switch interval

// An item that the plan has left to Python, or the error that its class raised.
struct Unread {
  py::bytes payload;
  py::object buffers;
  py::object error = py::none();
};

// Empty at the end.
py::object next_of(py::handle source) {
  PyObject* const item = Py_TYPE(source.ptr())->tp_iternext(source.ptr());
  if (item == nullptr && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_StopIteration) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(item);
}

// Sends what still waits, once no more items follow.
class Ringing {
 public:
  explicit Ringing(driver::Stream& stream) : stream_(stream) {}
  ~Ringing() {
    if (waits) stream_.ring();
  }
  Ringing(const Ringing&) = delete;
  Ringing& operator=(const Ringing&) = delete;

  bool waits = false;

 private:
  driver::Stream& stream_;
};

}  // namespace

py::object PyStream::send_each(py::handle source, const plan::CompiledPlan& plan, py::handle slice_s) {
  if (PyIter_Check(source.ptr()) == 0) throw py::type_error("send_each() takes an iterator");
  const bool waits = slice_s.is_none();
  const TimeNs end = deadline_from(slice_s);
  TimeNs yield_at = waits ? now_ns() + kYieldInterval : end;
  plan::Packed packed;
  Ringing ringing(*stream_);
  pace_.resume(now_ns());
  while (true) {
    py::object item = next_of(source);
    if (!item) return py::none();
    packed.payload.clear(plan::kPayloadKeptBytes);
    packed.buffers.clear();
    plan::Sizes sizes;
    if (!plan::pack_value(plan.result, item.ptr(), packed, sizes)) return py::make_tuple(std::move(item));
    item = py::object();
    rpc::OutgoingItem outgoing{packed.payload.view(), export_buffers(packed.buffers)};
    Status failure;
    const bool may_wait = pace_.may_wait();
    ringing.waits = ringing.waits || may_wait;
    TimeNs now = 0;
    if (stream_->try_send(outgoing, false, failure, may_wait) == Outcome::kDone) {
      pace_.sent(now = now_ns(), may_wait);
    } else {
      pace_.sent(now_ns(), false);  // before the wait, which is none of the iterator's
      if (send_patiently(outgoing, waits, kNever, pace_.may_wait()) != Outcome::kDone)
        return py::make_tuple(bytes_of(as_text(packed.payload.view())), list_of(packed.buffers));
      pace_.resume(now = now_ns());
    }
    if (now < yield_at) continue;
    if (now >= end) return py::tuple();
    yield_at = now + kYieldInterval;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const WithoutGil others_may_run;
  }
}

py::tuple PyStream::receive_values(const plan::CompiledPlan& plan, size_t count, py::handle timeout) {
  std::vector<rpc::Item> items = take_items(count, timeout);
  py::list values(items.size());
  bool some_unread = false, some_buffers = false, failed = false;
  for (size_t i = 0; i < items.size(); ++i) {
    py::object blocks = buffers_of(items[i]);
    some_buffers = some_buffers || !blocks.is_none();
    const std::string_view payload = as_text(items[i].payload());
    plan::Sizes sizes;
    py::object value;
    try {
      if (!failed) value = plan::read_value(plan.result, payload, blocks, sizes);
    } catch (const py::error_already_set& raised) {  // by the item's class: the items before it come first
      failed = some_unread = true;
      values[i] = py::cast(Unread{py::bytes(), py::none(), exception_of(raised)});
      continue;
    }
    some_unread = some_unread || !value;
    values[i] = value ? std::move(value) : py::cast(Unread{bytes_of(payload), std::move(blocks)});
  }
  return py::make_tuple(std::move(values), some_unread, some_buffers);
}

void register_stream_items(py::module_& module) {
  py::class_<Unread>(module, "Unread")
      .def_readonly("payload", &Unread::payload)
      .def_readonly("buffers", &Unread::buffers)
      .def_readonly("error", &Unread::error);
}

}  // namespace rrpc::bind
