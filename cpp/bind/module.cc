// rrpc._core: a table of contents.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/metadata.h"
#include "bind/register.h"
#include "driver/devices.h"

namespace py = pybind11;

PYBIND11_MODULE(_core, module, py::mod_gil_not_used()) {
  module.doc() = "The C++ core of rrpc.";
  rrpc::bind::install_deferred_hook();
  rrpc::bind::register_codec(module);
  rrpc::bind::register_memory(module);
  rrpc::bind::register_plan(module);
  rrpc::bind::register_policy(module);
  rrpc::bind::register_loop(module);
  rrpc::bind::register_client(module);
  rrpc::bind::register_stream(module);
  rrpc::bind::register_server(module);
  rrpc::bind::direct::register_method(module);
  rrpc::bind::direct::register_future(module);
  rrpc::bind::direct::register_awaited(module);
  rrpc::bind::direct::register_calls(module);
  rrpc::bind::direct::register_loop_calls(module);
  module.def("set_error_factory", &rrpc::bind::set_error_factory);
  module.def("set_metadata_packer", &rrpc::bind::set_metadata_packer);
  module.def("default_options", &rrpc::bind::default_options);
  module.def("transports", [] {
    py::dict out;
    for (const char* scheme : rrpc::driver::kSchemes) {
      rrpc::Result<rrpc::driver::DeviceEntry*> device = nullptr;
      {
        const rrpc::bind::WithoutGil freed;
        device = rrpc::driver::find_device(scheme);
      }
      out[scheme] = device.ok() ? std::string() : device.status().message();
    }
    return out;
  });
  module.def("adapters", [] {
    const rrpc::bind::WithoutGil freed;
    return rrpc::driver::describe_adapters();
  });
}
