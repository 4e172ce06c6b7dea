// Python work that threads without the GIL leave behind: buffer exports to release, callbacks to run. It
// is done at the next crossing from Python, or by an engine's thread when it finds the time; callbacks only by one that
// waits, or the engine's: whoever begins, cancels or answers a call may hold a lock that a callback wants.
#pragma once

#include <Python.h>

#include <atomic>
#include <functional>

#include "driver/engine.h"

namespace rrpc::bind {

extern std::atomic<bool> g_deferred_pending;

void defer_release(const Py_buffer& view);
void defer_release(PyObject* object);
// Takes over the reference; called without arguments, errors are reported as unraisable.
void defer_callback(PyObject* callback);
// The same for later: defers the callback when called, once, and lets go of it with the last copy.
std::function<void()> deferred_callback(PyObject* callback);
// With the GIL held: where what it waits for has been.
void call_now(PyObject* callback);

// With the GIL held. Cheap when nothing is pending.
void run_deferred_slow();
// After a wait, before callbacks are run: one of them would get the exception of a signal's handler, which this throws.
void check_signals(bool interrupted, driver::Engine& engine);
inline void run_deferred() {
  if (g_deferred_pending.load(std::memory_order_relaxed)) run_deferred_slow();
}
// The same without callbacks; gives whether there are some.
bool release_deferred_slow();
// At a crossing that doesn't wait: callbacks are the engine's, which is woken for them.
inline void release_deferred(driver::Engine& engine) {
  if (g_deferred_pending.load(std::memory_order_relaxed) && release_deferred_slow()) engine.see_to_deferred();
}

void install_deferred_hook();

}  // namespace rrpc::bind
