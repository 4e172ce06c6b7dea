// Calls of Python from where a call is carried out in C++: what may come out of them, and what must not be lost.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace rrpc::bind {

// Runs Python from a frame that owns objects: no destructor of that frame may let go of them without the GIL, which a
// daemon thread doesn't get back once the interpreter has ended. CPython's functions throw nothing else.
template <typename Call>
auto call_python(Call call) {
  try {
    return call();
  } catch (...) {
    while (true) pause();
  }
}

// The exception, with its traceback.
inline pybind11::object exception_of(const pybind11::error_already_set& raised) {
  const pybind11::object& error = raised.value();
  if (raised.trace()) PyException_SetTraceback(error.ptr(), raised.trace().ptr());
  return error;
}

// After a failure: clears what Python raises again when it does what is left to it, and throws what must not be lost,
// such as KeyboardInterrupt.
void leave_to_python();
// The same after a constructor, whose TypeError or ValueError is the value's fault; all else is its own.
void leave_refusal_to_python();

}  // namespace rrpc::bind
