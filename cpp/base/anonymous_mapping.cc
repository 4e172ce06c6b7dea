#include "base/anonymous_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

namespace rrpc {

constexpr size_t kHugePageBytes = 2 << 20;

AnonymousMapping::AnonymousMapping(AnonymousMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AnonymousMapping& AnonymousMapping::operator=(AnonymousMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AnonymousMapping::~AnonymousMapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<AnonymousMapping> AnonymousMapping::create(size_t length_bytes, bool huge_pages) {
  // One huge page more than asked for; what sticks out on both sides of the aligned part goes back.
  const size_t mapped_bytes = length_bytes + kHugePageBytes;
  void* address =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return Status::from_errno(errno, "mapping " + std::to_string(length_bytes) + " bytes");
  auto* start = static_cast<std::byte*>(address);
  const size_t before = (kHugePageBytes - reinterpret_cast<size_t>(start) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) munmap(start, before);
  munmap(start + before + length_bytes, mapped_bytes - before - length_bytes);
  AnonymousMapping mapping;
  mapping.data_ = start + before;
  mapping.size_ = length_bytes;
  if (huge_pages) (void)madvise(mapping.data_, length_bytes, MADV_HUGEPAGE);  // a wish
  return mapping;
}

}  // namespace rrpc
