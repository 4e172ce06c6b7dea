// Private memory of this process from the system, on huge pages where it has them.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace rrpc {

class AnonymousMapping {
 public:
  AnonymousMapping() = default;
  AnonymousMapping(AnonymousMapping&& other) noexcept;
  AnonymousMapping& operator=(AnonymousMapping&& other) noexcept;
  ~AnonymousMapping();

  // Zeroed; aligned to a huge page if it is as large as one. Address space alone: pages come with the first touch.
  static Result<AnonymousMapping> create(size_t length_bytes, bool huge_pages = true);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rrpc
