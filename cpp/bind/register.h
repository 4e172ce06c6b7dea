// One function per topic; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace rrpc::bind {
void register_codec(pybind11::module_& module);
void register_memory(pybind11::module_& module);
void register_plan(pybind11::module_& module);
void register_policy(pybind11::module_& module);
void register_client(pybind11::module_& module);
void register_loop(pybind11::module_& module);
void register_stream_items(pybind11::module_& module);
void register_stream(pybind11::module_& module);
void register_server(pybind11::module_& module);
namespace direct {
void register_method(pybind11::module_& module);
void register_future(pybind11::module_& module);
void register_awaited(pybind11::module_& module);
void register_calls(pybind11::module_& module);
void register_loop_calls(pybind11::module_& module);
}  // namespace direct
}  // namespace rrpc::bind
