// Objects that count their references themselves and go back to a Recycler with the last one. std::shared_ptr keeps two
// counts, and asks at each change whether the process has threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/recycler.h"

namespace rrpc {

template <typename T>
class RecycledRef;

// Base of such a T.
template <typename T>
class Recycled {
 public:
  Recycled(const Recycled&) = delete;
  Recycled& operator=(const Recycled&) = delete;

 private:
  friend T;  // alone has it as a base
  friend class RecycledRef<T>;
  Recycled() = default;
  std::atomic<uint32_t> references_{1};
  Recycler* home_ = nullptr;
};

template <typename T>
class RecycledRef {
 public:
  RecycledRef() = default;
  RecycledRef(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  static RecycledRef make(Recycler& home) {
    T* const made = ::new (home.take(sizeof(T))) T;
    made->home_ = &home;
    return RecycledRef(made);
  }
  RecycledRef(const RecycledRef& other) : object_(other.object_) {
    if (object_ != nullptr) object_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  RecycledRef(RecycledRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  RecycledRef& operator=(RecycledRef other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RecycledRef() {
    if (object_ != nullptr && object_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(object_);
  }

  T* get() const { return object_; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const RecycledRef&) const = default;
  bool operator==(std::nullptr_t) const { return object_ == nullptr; }

 private:
  explicit RecycledRef(T* made) : object_(made) {}
  [[gnu::noinline]] static void destroy(T* object) {
    Recycler* const home = object->home_;
    object->~T();
    home->give_back(object, sizeof(T));
  }

  T* object_ = nullptr;
};

}  // namespace rrpc
