// An event loop's queue as Python has it, and what comes out of it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

#include "driver/loop_queue.h"

namespace rrpc::bind {

namespace py = pybind11;

// Of a LoopItem: `to` is the list that poll() gives. Appends (target, first, second); takes the target's reference.
void deliver(void* to, PyObject* target, const py::object& first, const py::object& second);

// Holds a Python object until it is delivered, or given up on whatever thread.
class LoopTarget {
 public:
  explicit LoopTarget(py::object target) : target_(target.release().ptr()) {}
  ~LoopTarget();
  LoopTarget(const LoopTarget&) = delete;
  LoopTarget& operator=(const LoopTarget&) = delete;
  PyObject* get() const { return target_; }
  PyObject* take() { return std::exchange(target_, nullptr); }

 private:
  PyObject* target_;
};

// Ends as (target, payload, blocks), or as (target, None, error).
class PyLoopCall final : public driver::LoopCall {
 public:
  PyLoopCall(std::shared_ptr<driver::LoopQueue> queue, py::object target)
      : LoopCall(std::move(queue)), target_(std::move(target)) {}
  void deliver(void* to) override;

 private:
  LoopTarget target_;
};

// May come many times, as (target, None, None).
class PyLoopNews final : public driver::LoopItem {
 public:
  explicit PyLoopNews(py::object target) : target_(std::move(target)) {}
  void deliver(void* to) override { deliver(to, py::none()); }
  void deliver(void* to, const py::object& first);
  // What holds the news may be held by the target. With the GIL.
  void forget() { Py_XDECREF(target_.take()); }

 private:
  LoopTarget target_;
};

// Nobody waits for the reply to the call of this handle any more: (target, handle, None) of the news' target.
class PyLoopGivenUp final : public driver::LoopItem {
 public:
  PyLoopGivenUp(std::shared_ptr<PyLoopNews> news, uint64_t handle) : news_(std::move(news)), handle_(handle) {}
  void deliver(void* to) override { news_->deliver(to, py::int_(handle_)); }

 private:
  const std::shared_ptr<PyLoopNews> news_;
  const uint64_t handle_;
};

class PyLoopQueue {
 public:
  PyLoopQueue();
  ~PyLoopQueue() { close(); }
  PyLoopQueue(const PyLoopQueue&) = delete;
  PyLoopQueue& operator=(const PyLoopQueue&) = delete;

  const std::shared_ptr<driver::LoopQueue>& queue() const { return queue_; }
  int fileno() const { return queue_->fd(); }
  std::optional<py::list> poll();
  void close();

 private:
  std::shared_ptr<driver::LoopQueue> queue_;
};

}  // namespace rrpc::bind
