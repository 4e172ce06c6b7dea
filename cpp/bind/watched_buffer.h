// A debug mode: the bytes of each exported buffer are summed when it is exported, and again when its peer is done with
// it. Who changed an array while it was sent is told so.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "endpoint/exposure.h"

namespace rrpc::bind {

namespace py = pybind11;

// Called with the number of bytes of each buffer that is exported, it gives what is called, without arguments, if they
// change; None: nothing is watched.
void watch_buffers(const py::object& begin);
// In the place of the buffer's hold, where buffers are watched.
std::shared_ptr<endpoint::Hold> watched(const endpoint::Buffer& buffer);

}  // namespace rrpc::bind
