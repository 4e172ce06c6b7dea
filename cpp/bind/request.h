// A call as a server's Python gets it: the named tuple rrpc._core.Request.
#pragma once

#include <pybind11/pybind11.h>

#include "driver/turns.h"

namespace rrpc::bind {

// Whether the caller asks where its time goes.
bool is_traced(const rpc::ServerCall& call);
// Takes the call's blocks.
pybind11::object request_of(driver::Work& work);
// The same with blocks that were taken before.
pybind11::object request_of(driver::Work& work, pybind11::object blocks);
void register_request(pybind11::module_& module);

}  // namespace rrpc::bind
