// Pool of memory blocks in size classes under a byte cap. Blocks stay mapped and faulted in when
// they are free, because first touch costs several times the copy; at the cap, free ones give their
// pages back. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/anonymous_mapping.h"
#include "base/memfd.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

class Pool;

// What a block is for. Peers on this host map shared blocks and read them with one memcpy. Landing blocks are where
// reads put their bytes: private, so that they get huge pages where shared memory has none, and so that a
// forked child has a copy of its own.
enum class BlockKind : uint8_t { kShared, kLanding };

// One mapping, cut into equal blocks.
struct Slab {
  SharedMapping shared;
  UniqueFd read_only_fd;  // of `shared`, for peers: they may read, not write
  AnonymousMapping landing;

  std::byte* data() const { return shared ? shared.data() : landing.data(); }
  size_t size() const { return shared ? shared.size() : landing.size(); }
  provider::MemoryRange range() const { return {data(), size(), read_only_fd.get(), false}; }
};

// A block in use; gives itself back.
class PoolBlock {
 public:
  PoolBlock() = default;
  PoolBlock(PoolBlock&& other) noexcept;
  PoolBlock& operator=(PoolBlock&& other) noexcept;
  ~PoolBlock();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint32_t class_index_ = 0;
};

class Pool {
 public:
  explicit Pool(size_t limit_bytes);

  // At least one byte, aligned to 4 KiB; contents are whatever was there. ResourceExhausted at the cap.
  Result<PoolBlock> allocate(size_t length_bytes, BlockKind kind = BlockKind::kShared);
  // The slab that holds this address, or null. Slabs are never unmapped while the process lives.
  const Slab* find(const std::byte* address) const;
  void set_limit(size_t limit_bytes);
  size_t limit_bytes() const;
  // Gives the pages of all free blocks back to the system.
  void trim();

  // The process's pool. A forked child gets a new one: shared blocks are the parent's too.
  static Pool& process();

 private:
  friend class PoolBlock;
  struct FreeBlock {
    std::byte* data;
    bool committed;  // has pages
  };
  struct SizeClass {
    std::vector<FreeBlock> free;
  };

  void give_back(std::byte* data, uint32_t class_index);
  Status grow_locked(uint32_t class_index);
  void trim_locked(size_t needed_bytes);
  const Slab* find_locked(const std::byte* address) const;

  const int fork_generation_;  // of the process that made it
  mutable std::mutex mutex_;
  size_t limit_bytes_;
  size_t committed_bytes_ = 0;
  std::vector<SizeClass> classes_;
  std::map<const std::byte*, std::unique_ptr<Slab>> slabs_;
};

}  // namespace rrpc::endpoint
