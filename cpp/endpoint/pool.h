// Pool of memory blocks in size classes under a byte cap. Free blocks stay faulted in and registered for a while,
// because first touch costs several times the copy. At the cap, after a rest and when trimmed, slabs without a block in
// use give their pages back. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/at_fork.h"
#include "base/clock.h"
#include "base/result.h"
#include "endpoint/extent.h"
#include "endpoint/slab.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

class Pool;

// A block in use; gives itself back. The pool outlives it.
class PoolBlock {
 public:
  PoolBlock() = default;
  PoolBlock(PoolBlock&& other) noexcept;
  PoolBlock& operator=(PoolBlock&& other) noexcept;
  ~PoolBlock();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The slab that holds it.
  Slab& slab() const { return *slab_; }

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  Slab* slab_ = nullptr;  // the pool keeps it while it has blocks in use
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class Pool {
 public:
  static constexpr TimeNs kIdleTimeoutDefault = 10 * kSecond;

  explicit Pool(size_t limit_bytes);

  // At least one byte, aligned to 4 KiB; contents are whatever was there. ResourceExhausted at the cap.
  Result<PoolBlock> allocate(size_t length_bytes, BlockKind kind = BlockKind::kShared);
  // What a block of this length takes of the limit.
  static size_t block_bytes(size_t length_bytes);
  // The slab that holds this address, or null. Who holds the slab keeps its pages.
  std::shared_ptr<Slab> find(const std::byte* address) const;
  void set_limit(size_t limit_bytes);
  size_t limit_bytes() const;
  size_t committed_bytes() const { return space_->committed_bytes(); }
  size_t extent_count() const { return space_->extent_count(); }
  // Gives the pages of all slabs without a block in use back to the system. Returns how many bytes of blocks that were;
  // slabs that a transfer or an exposure still holds follow when those end.
  size_t trim();

  // As AddressSpace::prefer_node().
  Status prefer_node(int node) { return space_->prefer_node(node); }
  int preferred_node() const { return space_->preferred_node(); }

  // Brings in pages for the first so many bytes that land, at most up to the limit, and keeps them for good.
  Status prefault(size_t bytes) { return space_->prefault(std::min(bytes, limit_bytes())); }

  // What rested for this long gives its pages back; kNever: nothing does.
  void set_idle_timeout(TimeNs timeout);
  TimeNs idle_timeout() const;
  // Gives memory back that has rested: a few MiB, since page faults of other threads wait meanwhile. To be called when
  // due, from any thread that has milliseconds for it; gives when it is due again.
  TimeNs tend(TimeNs now);
  TimeNs next_tend() const { return next_tend_.load(std::memory_order_relaxed); }

  // The device is about to go: ends its registrations.
  void end_registrations(const provider::Device& device);

  // The process's pool. A forked child gets a new one: shared blocks are the parent's too.
  static Pool& process();

 private:
  friend class PoolBlock;
  static void begin_in_child();
  static const AtFork kAtFork;
  using SlabRef = std::shared_ptr<Slab>;
  using OpenSlabs = std::map<const std::byte*, Slab*>;  // with a free block; the lowest is filled first

  void give_back(Slab& slab, const std::byte* data);
  Slab* open_slab_locked(uint32_t class_index, bool may_commit) const;
  Result<Slab*> make_slab_locked(uint32_t class_index);
  // Takes slabs without a block in use out of the pool: at least so many bytes, if there are, large ones first.
  std::deque<SlabRef> retire_locked(size_t needed_bytes, uint64_t used_before);
  Status over_limit_locked(size_t length_bytes) const;
  void end_rest_locked(TimeNs now);

  const int fork_generation_;  // of the process that made it
  const std::shared_ptr<AddressSpace> space_;
  mutable std::mutex mutex_;
  size_t limit_bytes_;
  std::vector<OpenSlabs> classes_;
  std::map<const std::byte*, SlabRef> slabs_;

  TimeNs idle_timeout_ = kIdleTimeoutDefault;
  uint64_t rests_ = 0;  // quarters of the idle timeout that have passed
  TimeNs next_rest_ = 0;
  std::deque<SlabRef> resting_;  // retired; tend() gives their pages back piece by piece
  std::atomic<TimeNs> next_tend_{0};
};

}  // namespace rrpc::endpoint
