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

void run_deferred_slow() {
  std::vector<Py_buffer> views;
  std::vector<PyObject*> objects;
  std::vector<PyObject*> callbacks;
  {
    std::lock_guard lock(g_mutex);  // held for moments only, and never while waiting for the GIL
    views.swap(g_views);
    objects.swap(g_objects);
    callbacks.swap(g_callbacks);
    g_deferred_pending.store(false);
  }
  // Releasing may run finalizers, which must not see an exception that is under way.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  for (Py_buffer& view : views) PyBuffer_Release(&view);
  for (PyObject* object : objects) Py_DECREF(object);
  bool interrupted = false;
  for (PyObject* callback : callbacks) {
    PyObject* result = PyObject_CallNoArgs(callback);
    if (result == nullptr && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
      PyErr_Clear();
      interrupted = true;
    } else if (result == nullptr) {
      PyErr_WriteUnraisable(callback);
    }
    Py_XDECREF(result);
    Py_DECREF(callback);
  }
  PyErr_Restore(type, value, traceback);
  if (interrupted) PyErr_SetInterrupt();  // Ctrl-C is for the main thread, and not for what it runs on the way
}

void check_signals(bool interrupted) {
  if (!interrupted && !g_deferred_pending.load(std::memory_order_relaxed)) return;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
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
