// Bytes that others are added to: within the object while there are few, from the heap otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"

namespace rrpc {

template <size_t kWithin>
class GrowingBytes {
 public:
  GrowingBytes() = default;
  GrowingBytes(const GrowingBytes&) = delete;  // views of it stay valid until it grows
  GrowingBytes& operator=(const GrowingBytes&) = delete;

  Bytes view() const { return {data(), size_}; }
  size_t size() const { return size_; }

  void append(Bytes bytes) {
    if (bytes.size() > room_ - size_) grow(bytes.size());
    if (!bytes.empty()) std::memcpy(data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  void prepend(std::byte byte) {
    append({&byte, 1});
    std::rotate(data(), data() + size_ - 1, data() + size_);
  }
  // Keeps the first `size` bytes.
  void shrink(size_t size) { size_ = std::min(size, size_); }
  // Keeps none, and gives the heap's memory back where there is more of it than this.
  void clear(size_t kept_room) {
    size_ = 0;
    if (room_ <= std::max(kept_room, kWithin)) return;
    heap_.reset();
    room_ = kWithin;
  }

 private:
  const std::byte* data() const { return heap_ ? heap_.get() : within_.data(); }
  std::byte* data() { return heap_ ? heap_.get() : within_.data(); }
  [[gnu::noinline]] void grow(size_t more) {
    const size_t room = std::max(size_ + more, 2 * room_);
    auto larger = std::make_unique_for_overwrite<std::byte[]>(room);
    std::memcpy(larger.get(), data(), size_);
    heap_ = std::move(larger);
    room_ = room;
  }

  size_t size_ = 0;
  size_t room_ = kWithin;
  std::unique_ptr<std::byte[]> heap_;
  std::array<std::byte, kWithin> within_;  // the first size_ are written, unless they are in heap_
};

}  // namespace rrpc
