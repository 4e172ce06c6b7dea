// Address space for pools, cut into ranges. Few large extents serve blocks of all sizes: one descriptor for each of
// those that peers may map, however many blocks are in it. Pages come with the first touch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/anonymous_mapping.h"
#include "base/memfd.h"
#include "base/numa.h"
#include "base/result.h"

namespace rrpc::endpoint {

// What a block is for. Peers on this host map shared blocks and read them with one memcpy. Landing blocks are where
// reads put their bytes: private, so that they get huge pages where shared memory has none, and so that a
// forked child has a copy of its own.
enum class BlockKind : uint8_t { kShared, kLanding };

// Not thread-safe.
class Extent {
 public:
  static Result<std::unique_ptr<Extent>> create(BlockKind kind, size_t length_bytes);

  BlockKind kind() const { return kind_; }
  std::byte* data() const { return kind_ == BlockKind::kShared ? shared_.data() : landing_.data(); }
  size_t size() const { return size_; }
  // Of a shared extent, for peers: they may read, not write. -1 of others.
  int fd() const { return shared_.fd(); }

  // The first so many bytes have pages for good: giving them back isn't worth it.
  size_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }
  void keep(size_t bytes) { kept_bytes_ = bytes; }

  // The lowest free range of that length; nothing where none is long enough.
  std::optional<size_t> take(size_t length_bytes, size_t alignment);
  void give_back(size_t offset, size_t length_bytes);

 private:
  Extent(BlockKind kind, size_t length_bytes) : kind_(kind), size_(length_bytes) { free_[0] = length_bytes; }

  const BlockKind kind_;
  const size_t size_;
  SharedMapping shared_;
  AnonymousMapping landing_;
  std::atomic<size_t> kept_bytes_{0};
  std::map<size_t, size_t> free_;  // offset -> length; neighbours are joined
};

// A range of an extent.
struct ExtentRange {
  Extent* extent = nullptr;
  size_t offset = 0;
  size_t length_bytes = 0;
  std::byte* data() const { return extent->data() + offset; }
  // Of it, how much has pages for good.
  size_t kept_bytes() const {
    return std::min(length_bytes, extent->kept_bytes() - std::min(offset, extent->kept_bytes()));
  }
};

// The extents of one pool, and how much of them has pages. Thread-safe. Slabs hold it: it may outlive the pool.
class AddressSpace {
 public:
  // `limit_bytes`: no more than about that will be wanted at a time.
  explicit AddressSpace(size_t limit_bytes);

  // All extents have their pages from this NUMA node, where it has some: those that come, too. FailedPrecondition where
  // another one is preferred already, or the system doesn't allow it.
  Status prefer_node(int node);
  int preferred_node() const { return preferred_node_; }  // -1: none

  Result<ExtentRange> take(BlockKind kind, size_t length_bytes);
  // Of a range without pages.
  void give_back(const ExtentRange& range);

  // Brings in pages for so much landing memory, which is cut first and keeps them. Takes as long as that takes.
  Status prefault(size_t bytes);

  void commit(size_t bytes);
  void uncommit(size_t bytes);
  size_t committed_bytes() const { return committed_bytes_.load(std::memory_order_relaxed); }
  size_t extent_count() const;

 private:
  Result<Extent*> grow_locked(BlockKind kind, size_t length_bytes);

  const size_t first_extent_bytes_;
  std::atomic<size_t> committed_bytes_{0};
  mutable std::mutex mutex_;
  std::atomic<int> preferred_node_{-1};
  std::vector<std::unique_ptr<Extent>> extents_;
};

}  // namespace rrpc::endpoint
