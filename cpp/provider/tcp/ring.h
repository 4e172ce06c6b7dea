// A queue of fixed capacity whose elements stay where they are until popped.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace rrpc::provider::tcp {

template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : slots_(capacity) {}

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == slots_.size(); }
  size_t size() const { return count_; }
  size_t capacity() const { return slots_.size(); }

  // The new last element, still with an earlier one's contents: the caller fills it.
  T& push_slot() {
    RRPC_CHECK(!full(), "ring overflow");
    return slots_[(head_ + count_++) % slots_.size()];
  }
  void push(T value) { push_slot() = std::move(value); }
  T& front() { return (*this)[0]; }
  T& operator[](size_t index) {
    RRPC_CHECK(index < count_, "ring index");
    return slots_[(head_ + index) % slots_.size()];
  }
  const T& operator[](size_t index) const { return const_cast<Ring&>(*this)[index]; }
  void pop() {
    RRPC_CHECK(count_ > 0, "ring underflow");
    head_ = (head_ + 1) % slots_.size();
    --count_;
  }
  void clear() { head_ = count_ = 0; }

 private:
  std::vector<T> slots_;
  size_t head_ = 0;
  size_t count_ = 0;
};

}  // namespace rrpc::provider::tcp
