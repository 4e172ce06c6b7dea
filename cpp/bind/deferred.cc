#include "bind/deferred.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/engine.h"

namespace rrpc::bind {

std::atomic<bool> g_deferred_pending{false};

namespace {

std::mutex g_mutex;
std::vector<Py_buffer> g_views;
std::vector<PyObject*> g_objects;
std::vector<PyObject*> g_callbacks;
std::atomic<bool> g_closed{false};

// Whether this thread runs Python. Up to 3.11 the current thread state is the one of whoever has the GIL.
bool runs_python() {
#if PY_VERSION_HEX >= 0x030d0000
  PyThreadState* const current = PyThreadState_GetUnchecked();
#else
  PyThreadState* const current = _PyThreadState_UncheckedGet();
#endif
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

void defer_release(const Py_buffer& view) {
  std::lock_guard lock(g_mutex);
  g_views.push_back(view);
  g_deferred_pending.store(true);
}

void defer_release(PyObject* object) {
  std::lock_guard lock(g_mutex);
  g_objects.push_back(object);
  g_deferred_pending.store(true);
}

void defer_callback(PyObject* callback) {
  std::lock_guard lock(g_mutex);
  g_callbacks.push_back(callback);
  g_deferred_pending.store(true);
}

std::function<void()> deferred_callback(PyObject* callback) {
  struct Holder {
    PyObject* callback;
    ~Holder() {
      if (callback != nullptr) defer_release(callback);
    }
  };
  auto holder = std::make_shared<Holder>(callback);
  return [holder] {
    if (PyObject* const once = std::exchange(holder->callback, nullptr)) defer_callback(once);
  };
}

namespace {

// Releasing may run finalizers, and callbacks anything: they mustn't see an exception that is under way.
class ExceptionAside {
 public:
  ExceptionAside() { PyErr_Fetch(&type_, &value_, &traceback_); }
  // Where the interpreter ends while a finalizer or a callback waits for the GIL, CPython ends this thread: its stack
  // is unwound without the GIL.
  ~ExceptionAside() {
    if (runs_python()) PyErr_Restore(type_, value_, traceback_);
  }
  ExceptionAside(const ExceptionAside&) = delete;
  ExceptionAside& operator=(const ExceptionAside&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

void release() {
  std::vector<Py_buffer> views;
  std::vector<PyObject*> objects;
  {
    std::lock_guard lock(g_mutex);  // held for moments only, and never while waiting for the GIL
    views.swap(g_views);
    objects.swap(g_objects);
    g_deferred_pending.store(!g_callbacks.empty());
  }
  for (Py_buffer& view : views) PyBuffer_Release(&view);
  for (PyObject* object : objects) Py_DECREF(object);
}

std::vector<PyObject*> take_callbacks() {
  std::lock_guard lock(g_mutex);
  g_deferred_pending.store(!g_views.empty() || !g_objects.empty());
  return std::exchange(g_callbacks, {});
}

// False: Ctrl-C came amid it.
bool call(PyObject* callback) {
  PyObject* result = PyObject_CallNoArgs(callback);
  const bool interrupted = result == nullptr && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0;
  if (interrupted)
    PyErr_Clear();
  else if (result == nullptr)
    PyErr_WriteUnraisable(callback);
  Py_XDECREF(result);
  return !interrupted;
}

}  // namespace

void call_now(PyObject* callback) {
  if (!call(callback)) PyErr_SetInterrupt();
}

bool release_deferred_slow() {
  const ExceptionAside aside;
  release();
  std::lock_guard lock(g_mutex);
  return !g_callbacks.empty();
}

void run_deferred_slow() {
  bool interrupted = false;
  {
    const ExceptionAside aside;
    release();
    for (PyObject* callback : take_callbacks()) {
      interrupted = !call(callback) || interrupted;
      Py_DECREF(callback);
    }
  }
  if (interrupted) PyErr_SetInterrupt();  // Ctrl-C is for the main thread, and not for what it runs on the way
}

void check_signals(bool interrupted, driver::Engine& engine) {
  if (!interrupted && !g_deferred_pending.load(std::memory_order_relaxed)) return;
  if (PyErr_CheckSignals() == 0) return;
  engine.see_to_deferred();
  throw pybind11::error_already_set();
}

void install_deferred_hook() {
  driver::Engine::set_deferred_hook(&g_deferred_pending, [] {
    if (Py_IsInitialized() == 0 || interpreter_is_ending()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    run_deferred();
    PyGILState_Release(state);
  });
  pthread_atfork(nullptr, nullptr, [] {
    new (&g_mutex) std::mutex();
    // The parent releases its own; the child's copies stay referenced.
    new (&g_views) std::vector<Py_buffer>();
    new (&g_objects) std::vector<PyObject*>();
    new (&g_callbacks) std::vector<PyObject*>();
    g_deferred_pending.store(false);
  });
}

}  // namespace rrpc::bind
