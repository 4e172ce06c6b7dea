// Pool of shared-memory blocks in size classes under a byte cap. Blocks stay mapped and faulted in when
// they are free, because first touch costs several times the copy; at the cap, free ones give their
// pages back. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memfd.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

class Pool;

// One shared-memory file, cut into equal blocks.
struct Slab {
  SharedMapping mapping;
  UniqueFd read_only_fd;  // what peers get: they may read, not write
  size_t block_bytes = 0;

  provider::MemoryRange range() const { return {mapping.data(), mapping.size(), read_only_fd.get(), false}; }
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
  Result<PoolBlock> allocate(size_t length_bytes);
  // The slab that holds this address, or null. Slabs are never unmapped while the process lives.
  const Slab* find(const std::byte* address) const;
  void set_limit(size_t limit_bytes);
  size_t limit_bytes() const;
  // Gives the pages of all free blocks back to the system.
  void trim();

  // The process's pool. A forked child gets a new one: the parent's blocks are shared with the parent.
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
