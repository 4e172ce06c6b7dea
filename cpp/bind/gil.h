// Letting go of the GIL, for whatever may wait or take a lock of the core.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace rrpc::bind {

// In pybind11's place (gil_scoped_release): a daemon thread may come back when the interpreter has ended. CPython then
// ends the thread by unwinding its stack, which no destructor lets through: the process would abort.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      while (true) pause();  // until the process ends, as CPython itself does from 3.14 on
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace rrpc::bind
