// Stands in for the GIL where the interpreter has none (PEP 703). On builds with the GIL all of this compiles to what
// it was without it.
//
// State that Python sees change is guarded by the critical section of its object. Like the GIL, a section is given up
// wherever its thread waits or lets go of the interpreter (bind/gil.h), so that code between two such points is as
// atomic as it is under the GIL, and no order of sections can deadlock.
#pragma once

#include <pybind11/critical_section.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace rrpc::bind {

// The critical section of an object, for a scope.
using Section = pybind11::scoped_critical_section;

// Latch: a lock for a few instructions that run no Python and wait for nothing.
// kOrdered: of atomics that several threads write and read in turn.
#ifdef Py_GIL_DISABLED
using Latch = std::mutex;
inline constexpr auto kOrdered = std::memory_order_seq_cst;
#else
struct Latch {
  void lock() {}
  void unlock() {}
};
inline constexpr auto kOrdered = std::memory_order_relaxed;
#endif

// The item of a list that others may change; null: it has none there.
inline pybind11::object item_of(PyObject* list, Py_ssize_t at) {
#ifdef Py_GIL_DISABLED
  PyObject* const item = PyList_GetItemRef(list, at);
  if (item == nullptr) PyErr_Clear();
  return pybind11::reinterpret_steal<pybind11::object>(item);
#else
  return pybind11::reinterpret_borrow<pybind11::object>(at < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, at)
                                                                                   : nullptr);
#endif
}

// The value of a key in a dict that others may change; null: there is none, or an exception.
inline pybind11::object value_in(PyObject* dict, PyObject* key) {
#ifdef Py_GIL_DISABLED
  PyObject* value = nullptr;
  (void)PyDict_GetItemRef(dict, key, &value);
  return pybind11::reinterpret_steal<pybind11::object>(value);
#else
  return pybind11::reinterpret_borrow<pybind11::object>(PyDict_GetItemWithError(dict, key));
#endif
}

// What pybind11 keeps in an object of a class of its own; null while it is being made. It takes no lock, as garbage
// collection needs it: other threads are stopped then, wherever they are.
template <typename T>
T* held_by(PyObject* self) {
  auto held = reinterpret_cast<pybind11::detail::instance*>(self)->get_value_and_holder();
  return held.holder_constructed() ? static_cast<T*>(held.value_ptr()) : nullptr;
}

// A method for pybind11 that runs with its object's section.
template <typename Class, typename Result, typename... Args>
auto alone(Result (Class::*method)(Args...)) {
#ifdef Py_GIL_DISABLED
  return [method](pybind11::handle self, Args... args) -> Result {
    const Section section(self);
    return (self.cast<Class&>().*method)(std::forward<Args>(args)...);
  };
#else
  return method;
#endif
}

}  // namespace rrpc::bind
