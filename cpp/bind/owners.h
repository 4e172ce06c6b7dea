// The Python objects that own memory which is sent often: registrations of it are kept while they live.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace rrpc::bind {

// Registers the owner of memory with the registration caches until it is collected; its id there.
uint64_t owner_id_of(PyObject* exporter);

}  // namespace rrpc::bind
