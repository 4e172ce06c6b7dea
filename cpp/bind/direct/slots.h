// What functions have in common that stand in the slots of CPython's types.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <new>

namespace rrpc::bind::direct {

// Gives what the function gives; null with the Python exception of what it throws.
template <typename Function>
PyObject* without_throwing(Function function) {
  try {
    return function();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// tp_dealloc of a heap type that takes part in garbage collection; kClear is its tp_clear.
template <inquiry kClear>
void dealloc_collected(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  kClear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace rrpc::bind::direct
