// A vector that needs no memory from the heap while it is short.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace rrpc {

// Room for kWithin elements, which one vector at a time may have.
template <typename T, size_t kWithin>
struct ShortVectorRoom {
  alignas(T) std::byte bytes[kWithin * sizeof(T)];
  bool taken = false;
};

template <typename T, size_t kWithin>
class ShortVectorAllocator {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the standard library looks for these names
  using value_type = T;
  template <typename U>
  struct rebind {
    using other = ShortVectorAllocator<U, kWithin>;
  };
  // NOLINTEND(readability-identifier-naming)

  explicit ShortVectorAllocator(ShortVectorRoom<T, kWithin>& room) : room_(&room) {}

  T* allocate(size_t count) {
    if (count > kWithin || room_->taken)
      return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(alignof(T))));
    room_->taken = true;
    return reinterpret_cast<T*>(room_->bytes);
  }
  void deallocate(T* memory, size_t count) noexcept {
    if (memory == reinterpret_cast<T*>(room_->bytes))
      room_->taken = false;
    else
      ::operator delete(memory, count * sizeof(T), std::align_val_t(alignof(T)));
  }
  bool operator==(const ShortVectorAllocator&) const = default;

 private:
  ShortVectorRoom<T, kWithin>* room_;
};

// Its room is a base, which is there before the vector and after it. It isn't moved: its elements may be within it.
template <typename T, size_t kWithin>
class ShortVector : private ShortVectorRoom<T, kWithin>, public std::vector<T, ShortVectorAllocator<T, kWithin>> {
  using Vector = std::vector<T, ShortVectorAllocator<T, kWithin>>;

 public:
  ShortVector() : Vector(ShortVectorAllocator<T, kWithin>(*this)) { this->reserve(kWithin); }
  ShortVector(const ShortVector&) = delete;
  ShortVector& operator=(const ShortVector&) = delete;
};

}  // namespace rrpc
