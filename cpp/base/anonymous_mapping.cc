#include "base/anonymous_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

namespace rrpc {

constexpr size_t kPageBytes = 4096;  // or less than the system's, which rounds by itself
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
  // Small ones lie side by side, where the system joins neighbours: it allows a process some 65,000 mappings, and
  // thousands of connections have several each. To align a large one, a huge page more is asked for than is wanted, and
  // what sticks out on both sides of the aligned part goes back.
  const size_t alignment = length_bytes < kHugePageBytes ? 0 : kHugePageBytes;
  const size_t kept_bytes = (length_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t mapped_bytes = kept_bytes + alignment;
  void* address =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return Status::from_errno(errno, "mapping " + std::to_string(length_bytes) + " bytes");
  auto* start = static_cast<std::byte*>(address);
  AnonymousMapping mapping;
  mapping.data_ = start;
  mapping.size_ = length_bytes;
  if (alignment == 0) return mapping;
  const size_t before = (alignment - reinterpret_cast<size_t>(start) % alignment) % alignment;
  if (before > 0) munmap(start, before);
  mapping.data_ = start + before;
  munmap(mapping.data_ + kept_bytes, alignment - before);
  if (huge_pages) (void)madvise(mapping.data_, length_bytes, MADV_HUGEPAGE);  // a wish
  return mapping;
}

}  // namespace rrpc
