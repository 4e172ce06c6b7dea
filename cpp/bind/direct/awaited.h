// A plain call of an asyncio client, as `await client.method(...)` has it: a coroutine that needs no Python.
#pragma once

#include <pybind11/pybind11.h>

#include "bind/direct/method.h"
#include "bind/direct/outgoing.h"

namespace rrpc::bind::direct {

// A new coroutine, which begins the call when it is awaited. Throws what Python raised.
py::object make_awaited(const DirectMethod& method, const Given& given);

}  // namespace rrpc::bind::direct
