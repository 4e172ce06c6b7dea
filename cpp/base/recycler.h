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

  struct LetGo {
    void operator()(Recycler* recycler) const { recycler->let_go(); }
  };
  // Owns a recycler on the heap, which is deleted when the owner and all pieces are gone.
  using Owner = std::unique_ptr<Recycler, LetGo>;
  static Owner make() { return Owner(new Recycler); }

  Recycler() = default;
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;
  ~Recycler() {
    while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
  }

  // All pieces are of the size that was asked for first; others are malloc's.
  void* take(size_t bytes) {
    void* const piece = take_kept(bytes);
    void* const taken = piece != nullptr ? piece : ::operator new(bytes);
    users_.fetch_add(1, std::memory_order_relaxed);
    return taken;
  }
  void give_back(void* piece, size_t bytes) {
    if (!keep(piece, bytes)) ::operator delete(piece);
    let_go();
  }

 private:
  struct Free {
    Free* next;
  };

  void* take_kept(size_t bytes) {
    if (busy_.test_and_set(std::memory_order_acquire)) return nullptr;
    if (piece_bytes_ == 0 && bytes >= sizeof(Free)) piece_bytes_ = bytes;
    Free* const taken = bytes == piece_bytes_ ? free_ : nullptr;
    if (taken != nullptr) {
      free_ = taken->next;
      --kept_;
    }
    busy_.clear(std::memory_order_release);
    return taken;
  }
  bool keep(void* piece, size_t bytes) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    const bool has_room = bytes == piece_bytes_ && kept_ < kKept;
    if (has_room) {
      free_ = ::new (piece) Free{free_};
      ++kept_;
    }
    busy_.clear(std::memory_order_release);
    return has_room;
  }
  void let_go() {
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  std::atomic_flag busy_;
  std::atomic<size_t> users_{1};  // the owner and each piece
  size_t piece_bytes_ = 0;
  size_t kept_ = 0;
  Free* free_ = nullptr;
};

// Allocator for std::allocate_shared() and for containers.
template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard library looks for this name

  explicit RecyclingAllocator(Recycler& recycler) : recycler_(&recycler) {}
  template <typename U>
  RecyclingAllocator(const RecyclingAllocator<U>& other)  // NOLINT(google-explicit-constructor)
      : recycler_(&other.recycler()) {}

  T* allocate(size_t count) { return static_cast<T*>(recycler_->take(count * sizeof(T))); }
  void deallocate(T* piece, size_t count) { recycler_->give_back(piece, count * sizeof(T)); }
  Recycler& recycler() const { return *recycler_; }
  template <typename U>
  bool operator==(const RecyclingAllocator<U>& other) const {
    return recycler_ == &other.recycler();
  }

 private:
  Recycler* recycler_;
};

}  // namespace rrpc
