// A copy of some bytes: within the object where there are few, from the heap otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/bytes.h"

namespace rrpc {

template <size_t kWithin>
class SmallBytes {
 public:
  SmallBytes() = default;
  SmallBytes(const SmallBytes&) = delete;  // views of it stay valid as long as it does
  SmallBytes& operator=(const SmallBytes&) = delete;

  [[gnu::always_inline]] Bytes assign(Bytes bytes) {
    if (bytes.size() > kWithin) [[unlikely]] {
      heap_ = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
      std::memcpy(heap_.get(), bytes.data(), size_ = bytes.size());
      return view();
    }
    if (heap_) [[unlikely]]
      heap_.reset();
    copy_short(within_.data(), bytes.data(), size_ = bytes.size());
    return {within_.data(), size_};
  }
  Bytes view() const { return {heap_ ? heap_.get() : within_.data(), size_}; }

 private:
  size_t size_ = 0;
  std::unique_ptr<std::byte[]> heap_;
  std::array<std::byte, kWithin> within_;  // the first size_ are written
};

}  // namespace rrpc
