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

  void assign(Bytes bytes) {
    heap_ = bytes.size() > kWithin ? std::make_unique_for_overwrite<std::byte[]>(bytes.size()) : nullptr;
    size_ = bytes.size();
    if (!bytes.empty()) std::memcpy(heap_ ? heap_.get() : within_.data(), bytes.data(), bytes.size());
  }
  Bytes view() const { return {heap_ ? heap_.get() : within_.data(), size_}; }

 private:
  size_t size_ = 0;
  std::unique_ptr<std::byte[]> heap_;
  std::array<std::byte, kWithin> within_;  // the first size_ are written
};

}  // namespace rrpc
