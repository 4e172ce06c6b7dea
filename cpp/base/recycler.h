// Memory for objects of one kind that come and go all the time: freed pieces are kept for the next ones, so that a
// steady load allocates nothing. Never waits: where another thread is at the list, malloc serves.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace rrpc {

class Recycler {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kKept = 0;  // a freed object stays out of use for long there, and is missed when touched
#else
  static constexpr size_t kKept = 32;
#endif

  Recycler() = default;
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;
  ~Recycler() {
    while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
  }

  // All pieces are of the size that was asked for first; others are malloc's.
  void* take(size_t bytes) {
    if (!busy_.test_and_set(std::memory_order_acquire)) {
      if (piece_bytes_ == 0 && bytes >= sizeof(Free)) piece_bytes_ = bytes;
      Free* const taken = bytes == piece_bytes_ ? free_ : nullptr;
      if (taken != nullptr) {
        free_ = taken->next;
        --kept_;
      }
      busy_.clear(std::memory_order_release);
      if (taken != nullptr) return taken;
    }
    return ::operator new(bytes);
  }
  void give_back(void* piece, size_t bytes) {
    if (!busy_.test_and_set(std::memory_order_acquire)) {
      const bool keep = bytes == piece_bytes_ && kept_ < kKept;
      if (keep) {
        free_ = ::new (piece) Free{free_};
        ++kept_;
      }
      busy_.clear(std::memory_order_release);
      if (keep) return;
    }
    ::operator delete(piece);
  }

 private:
  struct Free {
    Free* next;
  };

  std::atomic_flag busy_;
  size_t piece_bytes_ = 0;
  size_t kept_ = 0;
  Free* free_ = nullptr;
};

// For std::allocate_shared, whose objects keep the recycler, or with a Recycler* for containers that it outlives.
template <typename T, typename Pointer = std::shared_ptr<Recycler>>
class RecyclingAllocator {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard library looks for this name
  template <typename U>
  struct rebind {                                  // NOLINT(readability-identifier-naming): likewise
    using other = RecyclingAllocator<U, Pointer>;  // NOLINT(readability-identifier-naming): likewise
  };

  explicit RecyclingAllocator(Pointer recycler) : recycler_(std::move(recycler)) {}
  template <typename U>
  RecyclingAllocator(const RecyclingAllocator<U, Pointer>& other)  // NOLINT(google-explicit-constructor)
      : recycler_(other.recycler()) {}

  T* allocate(size_t count) { return static_cast<T*>(recycler_->take(count * sizeof(T))); }
  void deallocate(T* piece, size_t count) { recycler_->give_back(piece, count * sizeof(T)); }
  const Pointer& recycler() const { return recycler_; }
  template <typename U>
  bool operator==(const RecyclingAllocator<U, Pointer>& other) const {
    return recycler_ == other.recycler();
  }

 private:
  Pointer recycler_;
};

}  // namespace rrpc
