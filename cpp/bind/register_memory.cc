// Block: pool memory as a Python buffer; allocation and counters.
#include <pybind11/pybind11.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bind/convert.h"
#include "bind/gil.h"
#include "bind/register.h"
#include "bind/watched_buffer.h"
#include "driver/devices.h"
#include "endpoint/counters.h"
#include "rpc/budget.h"

namespace rrpc::bind {
namespace {

struct Block {
  endpoint::PoolBlock memory;
};

// The type's own buffer slot: pybind11's generic one allocates a description at every export.
int get_block_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* block = py::handle(self).cast<Block*>();
  return PyBuffer_FillInfo(view, self, block->memory.data(), static_cast<Py_ssize_t>(block->memory.size()), 0, flags);
}

}  // namespace

py::object wrap_block(endpoint::PoolBlock block) { return py::cast(std::make_unique<Block>(Block{std::move(block)})); }

void register_memory(py::module_& module) {
  py::class_<Block>(module, "Block", py::custom_type_setup([](PyHeapTypeObject* heap_type) {
                      heap_type->as_buffer.bf_getbuffer = &get_block_buffer;
                      heap_type->ht_type.tp_as_buffer = &heap_type->as_buffer;
                    }))
      .def_property_readonly("nbytes", [](const Block& block) { return block.memory.size(); });
  module.def("allocate", [](size_t nbytes) {
    auto block = endpoint::Pool::process().allocate(nbytes);
    raise_if_error(block.status());
    return wrap_block(std::move(*block));
  });
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
  module.def("trim", [] { return endpoint::Pool::process().trim(); }, py::call_guard<WithoutGil>());
  module.def("set_processes", &rpc::Budgets::set_processes);
  module.def("stats", [] {
    py::dict out;
    endpoint::Counters totals;
    endpoint::add_totals(totals);
#define RRPC_COUNTER_ITEM(name, meaning) out[#name] = totals.name.load(std::memory_order_relaxed);
    RRPC_COUNTERS(RRPC_COUNTER_ITEM)
#undef RRPC_COUNTER_ITEM
    out["pool_limit_bytes"] = endpoint::Pool::process().limit_bytes();
    out["exposed_limit_bytes"] = rpc::Budgets::process()->exposed.limit();
    out["queued_limit_bytes"] = rpc::Budgets::process()->queued.limit();
    return out;
  });
}

}  // namespace rrpc::bind
