// An event loop's driver as Python has it: polls the loop's queue in callbacks of the loop and hands over what comes.
#pragma once

#include <pybind11/pybind11.h>

#include <deque>
#include <memory>
#include <utility>

#include "bind/plan/threads.h"
#include "driver/loop_queue.h"

namespace rrpc::bind {

namespace py = pybind11;

class PyLoopDriver;

// Holds a Python object until it is delivered, or given up on whatever thread.
class LoopTarget {
 public:
  LoopTarget() = default;
  explicit LoopTarget(py::object target) : target_(target.release().ptr()) {}
  ~LoopTarget();
  LoopTarget(const LoopTarget&) = delete;
  LoopTarget& operator=(const LoopTarget&) = delete;
  void set(py::object target) { target_ = target.release().ptr(); }  // once
  PyObject* get() const { return target_; }
  py::object take() { return py::reinterpret_steal<py::object>(std::exchange(target_, nullptr)); }

 private:
  PyObject* target_ = nullptr;
};

// Ends as target.arrived(payload, blocks), or as target.arrived(None, error).
class PyLoopCall final : public driver::LoopCall {
 public:
  PyLoopCall(std::shared_ptr<driver::LoopQueue> queue, py::object target)
      : LoopCall(std::move(queue)), target_(std::move(target)) {}
  void deliver(void* to) override;

 private:
  LoopTarget target_;
};

// May come many times, as target.arrived(None, None).
class PyLoopNews final : public driver::LoopItem {
 public:
  explicit PyLoopNews(py::object target) : target_(std::move(target)) {}
  void deliver(void*) override { deliver(py::none()); }
  void deliver(const py::object& first);
  // What holds the news may be held by the target. For any thread, with the GIL.
  void forget();

 private:
  Latch latch_;
  LoopTarget target_;
};

// Nobody waits for the reply to the call of this handle any more: arrived(handle, None) of the news' target.
class PyLoopGivenUp final : public driver::LoopItem {
 public:
  PyLoopGivenUp(std::shared_ptr<PyLoopNews> news, uint64_t handle) : news_(std::move(news)), handle_(handle) {}
  void deliver(void*) override { news_->deliver(py::int_(handle_)); }

 private:
  const std::shared_ptr<PyLoopNews> news_;
  const uint64_t handle_;
};

// The `to` of deliver() is the driver. For the loop's own thread, with the GIL.
class PyLoopDriver {
 public:
  explicit PyLoopDriver(py::object loop);
  ~PyLoopDriver() { close(); }
  PyLoopDriver(const PyLoopDriver&) = delete;
  PyLoopDriver& operator=(const PyLoopDriver&) = delete;

  const std::shared_ptr<driver::LoopQueue>& queue() const { return queue_; }
  const py::object& loop() const { return loop_; }
  int fileno() const { return queue_->fd(); }
  // Has the loop poll from its next round on.
  void poll_soon();
  // The same where something has come that nobody has yet, or something may come.
  void poll_on() {
    if (!arrived_.empty() || !queue_->resting()) poll_soon();
  }
  // The loop's callback. Throws what a task or a target raised that ends the loop.
  void poll();
  void close();

  // Whether the one who runs may poll for a reply in place of going back to the loop: nothing else is awaited, nobody
  // is ready to run, and the loop went round not long ago.
  bool may_wait_here() const;
  // Polls until the item comes, for some microseconds at most; false if it doesn't. What comes for others is delivered
  // later. Without the GIL.
  bool wait_here(const driver::LoopItem& mine);
  // Runs callback(argument) in the context: at once out of deliver(), otherwise in the loop's next round.
  void wake(PyObject* callback, PyObject* argument, PyObject* context);
  void wake_soon(PyObject* callback, PyObject* argument, PyObject* context);

  // For garbage collection.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  bool take(bool patient);
  void deliver();
  void report(py::error_already_set& error);
  bool others_are_ready() const;
  bool sees_ready() const { return static_cast<bool>(ready_); }
  void call_poll_soon();

  py::object loop_;
  py::object ready_;          // asyncio's own deque of handles, where the loop has it
  py::object context_;        // what comes belongs to none of those who wait
  PyObject* self_ = nullptr;  // the Python object, which owns this one
  std::shared_ptr<driver::LoopQueue> queue_;
  std::deque<driver::LoopItemRef> arrived_;
  bool polling_ = false;     // a callback is scheduled, or runs
  bool delivering_ = false;  // wakes at once
  TimeNs round_end_ = 0;     // until which the loop may be kept from going round
};

}  // namespace rrpc::bind
