#include "endpoint/extent.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "base/anonymous_mapping.h"
#include "base/fault_in.h"
#include "endpoint/counters.h"

namespace rrpc::endpoint {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kFirstExtentBytesMin = 4 << 20;
constexpr size_t kFirstExtentBytesMax = 256 << 20;
constexpr size_t kPageBytes = 4096;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Result<std::unique_ptr<Extent>> Extent::create(BlockKind kind, size_t length_bytes) {
  std::unique_ptr<Extent> extent(new Extent(kind, length_bytes));
  if (kind == BlockKind::kLanding) {
    RRPC_ASSIGN_OR_RETURN(extent->landing_, AnonymousMapping::create(length_bytes, false));
    return extent;
  }
  RRPC_ASSIGN_OR_RETURN(extent->shared_, SharedMapping::create_read_only("rrpc-pool", length_bytes));
  (void)madvise(extent->data(), length_bytes, MADV_HUGEPAGE);  // a wish
  return extent;
}

std::optional<size_t> Extent::take(size_t length_bytes, size_t alignment) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [start, length] = *it;
    const size_t offset = round_up(start, alignment);
    const size_t end = start + length;
    if (offset > end || end - offset < length_bytes) continue;
    if (offset == start)
      free_.erase(it);
    else
      it->second = offset - start;
    if (offset + length_bytes < end) free_[offset + length_bytes] = end - offset - length_bytes;
    return offset;
  }
  return std::nullopt;
}

void Extent::give_back(size_t offset, size_t length_bytes) {
  auto range = free_.emplace(offset, length_bytes).first;
  if (const auto next = std::next(range); next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  free_.erase(range);
}

AddressSpace::AddressSpace(size_t limit_bytes)
    : first_extent_bytes_(limit_bytes >= kFirstExtentBytesMax
                              ? kFirstExtentBytesMax
                              : std::bit_ceil(std::max(limit_bytes, kFirstExtentBytesMin))) {}

Status AddressSpace::prefer_node(int node) {
  std::lock_guard lock(mutex_);
  if (preferred_node_ == node) return {};
  if (preferred_node_ >= 0)
    return failed_precondition("numa_node " + std::to_string(node) + ": the memory pool of this process is on node " +
                               std::to_string(preferred_node_) +
                               " already, and there is one for all servers and clients");
  // Where it isn't allowed that is to show here, though there are no extents yet.
  RRPC_ASSIGN_OR_RETURN(const AnonymousMapping page, AnonymousMapping::create(kPageBytes));
  RRPC_RETURN_IF_ERROR(rrpc::prefer_node(page.data(), kPageBytes, node));
  for (const auto& extent : extents_) RRPC_RETURN_IF_ERROR(rrpc::prefer_node(extent->data(), extent->size(), node));
  preferred_node_ = node;
  return {};
}

Result<ExtentRange> AddressSpace::take(BlockKind kind, size_t length_bytes) {
  const size_t alignment = length_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  std::lock_guard lock(mutex_);
  for (const auto& extent : extents_) {
    if (extent->kind() != kind) continue;
    if (const auto offset = extent->take(length_bytes, alignment))
      return ExtentRange{extent.get(), *offset, length_bytes};
  }
  RRPC_ASSIGN_OR_RETURN(Extent* const made, grow_locked(kind, length_bytes));
  return ExtentRange{made, *made->take(length_bytes, alignment), length_bytes};
}

// Each extent is as large as all before it, so that their number grows with the logarithm of what is wanted; smaller
// where the process may not have that much address space.
Result<Extent*> AddressSpace::grow_locked(BlockKind kind, size_t length_bytes) {
  size_t total_bytes = 0;
  for (const auto& extent : extents_)
    if (extent->kind() == kind) total_bytes += extent->size();
  const size_t needed_bytes = round_up(length_bytes, kHugePageBytes);
  size_t extent_bytes = std::max({first_extent_bytes_, total_bytes, needed_bytes});
  for (;;) {
    auto extent = Extent::create(kind, extent_bytes);
    if (extent.ok()) {
      // What was allowed before and isn't any more is but a preference.
      if (preferred_node_ >= 0) (void)rrpc::prefer_node((*extent)->data(), (*extent)->size(), preferred_node_);
      extents_.push_back(std::move(*extent));
      return extents_.back().get();
    }
    if (extent_bytes == needed_bytes) return extent.status();
    extent_bytes = std::max(round_up(extent_bytes / 2, kHugePageBytes), needed_bytes);
  }
}

Status AddressSpace::prefault(size_t bytes) {
  Extent* extent = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(extents_, [&](const auto& candidate) {
      return candidate->kind() == BlockKind::kLanding && candidate->size() >= bytes;
    });
    if (found != extents_.end()) extent = found->get();
    if (extent == nullptr) {
      RRPC_ASSIGN_OR_RETURN(extent, grow_locked(BlockKind::kLanding, bytes));
    }
    extent->keep(std::max(extent->kept_bytes(), round_up(bytes, kPageBytes)));
  }
  fault_in(extent->data(), extent->kept_bytes());
  return {};
}

void AddressSpace::give_back(const ExtentRange& range) {
  std::lock_guard lock(mutex_);
  range.extent->give_back(range.offset, range.length_bytes);
}

void AddressSpace::commit(size_t bytes) {
  committed_bytes_ += bytes;
  count(counters().pool_bytes_committed, static_cast<int64_t>(bytes));
}

void AddressSpace::uncommit(size_t bytes) {
  committed_bytes_ -= bytes;
  count(counters().pool_bytes_committed, -static_cast<int64_t>(bytes));
}

size_t AddressSpace::extent_count() const {
  std::lock_guard lock(mutex_);
  return extents_.size();
}

}  // namespace rrpc::endpoint
