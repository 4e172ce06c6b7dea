// Block: pool memory as a Python buffer; allocation and counters.
#include <pybind11/pybind11.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/plan/arrays.h"
#include "bind/plan/threads.h"
#include "bind/register.h"
#include "bind/watched_buffer.h"
#include "driver/devices.h"
#include "endpoint/counters.h"
#include "endpoint/lending.h"
#include "rpc/budget.h"

namespace rrpc::bind {
namespace {

struct Block {
  endpoint::ReceivedBlock memory;
};

// The type's own buffer slot: pybind11's generic one allocates a description at every export.
int get_block_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const block = held_by<Block>(self);
  if (block == nullptr) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "a block is made by the core");
    return -1;
  }
  const endpoint::ReceivedBlock& memory = block->memory;
  const int read_only = memory.read_only() ? 1 : 0;
  return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size()), read_only, flags);
}

// A buffer that the peer may read in place.
struct Lent {
  py::object buffer;
};
PyTypeObject* g_lent_type = nullptr;

}  // namespace

py::handle lent_buffer(py::handle object) {
  if (Py_TYPE(object.ptr()) != g_lent_type) return {};
  return object.cast<const Lent&>().buffer;
}

py::object wrap_block(endpoint::ReceivedBlock block) {
  py::object wrapped = py::cast(std::make_unique<Block>(Block{std::move(block)}));
  plan::share_references(wrapped.ptr());
  return wrapped;
}

void register_memory(py::module_& module) {
  py::class_<Block>(module, "Block", py::custom_type_setup([](PyHeapTypeObject* heap_type) {
                      heap_type->as_buffer.bf_getbuffer = &get_block_buffer;
                      heap_type->ht_type.tp_as_buffer = &heap_type->as_buffer;
                    }))
      .def_property_readonly("nbytes", [](const Block& block) { return block.memory.size(); });
  const py::class_<Lent> lent(module, "Lent");
  g_lent_type = reinterpret_cast<PyTypeObject*>(lent.ptr());
  py::class_<Lent>(lent).def(py::init<py::object>(), py::arg("buffer")).def_readonly("buffer", &Lent::buffer);
  const auto allocate = [](size_t nbytes, bool is_private) {
    const auto kind = is_private ? endpoint::BlockKind::kLanding : endpoint::BlockKind::kShared;
    endpoint::Lending::process().collect_some();
    run_deferred();  // which lets go of what was collected
    auto block = endpoint::Pool::process().allocate(nbytes, kind);
    if (block.status().code() == StatusCode::kResourceExhausted) {
      endpoint::Lending::process().collect();
      run_deferred();
      block = endpoint::Pool::process().allocate(nbytes, kind);
    }
    raise_if_error(block.status());
    return wrap_block(std::move(*block));
  };
  module.def("allocate", allocate, py::arg("nbytes"), py::arg("private") = false);
  module.def("share_references", [](const py::object& array) { plan::share_references(array.ptr()); });
  module.def(
      "set_pool_limit", [](size_t nbytes) { endpoint::Pool::process().set_limit(nbytes); },
      py::call_guard<WithoutGil>());
  module.def("set_pool_idle_timeout", [](std::optional<double> seconds) {
    const TimeNs timeout = seconds ? static_cast<TimeNs>(std::min(*seconds, 1e9) * kSecond) : kNever;
    endpoint::Pool::process().set_idle_timeout(timeout);
  });
  module.def("prefault_pool", [](size_t nbytes) {
    Status status;
    {
      const WithoutGil released;
      status = endpoint::Pool::process().prefault(nbytes);
    }
    raise_if_error(status);
  });
  module.def("watch_buffers", &watch_buffers, py::arg("begin"));
  module.def(
      "trim",
      [] {
        endpoint::Lending::process().collect();
        return endpoint::Pool::process().trim();
      },
      py::call_guard<WithoutGil>());
  module.def("set_processes", &rpc::Budgets::set_processes);
  module.def("stats", [] {
    endpoint::Lending::process().collect();
    run_deferred();
    py::dict out;
    endpoint::Counters totals;
    endpoint::add_totals(totals);
#define RRPC_COUNTER_ITEM(name, meaning) out[#name] = totals.name.load(std::memory_order_relaxed);
    RRPC_COUNTERS(RRPC_COUNTER_ITEM)
#undef RRPC_COUNTER_ITEM
    out["pool_limit_bytes"] = endpoint::Pool::process().limit_bytes();
    out["lent_limit_bytes"] = endpoint::Lending::limit_bytes();
    out["exposed_limit_bytes"] = rpc::Budgets::process()->exposed.limit();
    out["queued_limit_bytes"] = rpc::Budgets::process()->queued.limit();
    return out;
  });
}

}  // namespace rrpc::bind
