// The part of an extent that is committed, registered and given back as a whole: equal blocks, or one large block.
//
// A slab owns its registrations, one for each device, and its pages. Whoever works on registered memory holds a
// RegionRef, and a RegionRef holds the slab. Its destructor ends the registrations and then gives the pages back, so no
// page under a live registration goes, whoever held it last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "endpoint/extent.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

using RegionRef = std::shared_ptr<provider::MemoryRegion>;

class Slab : public std::enable_shared_from_this<Slab> {
 public:
  Slab(std::shared_ptr<AddressSpace> space, const ExtentRange& range, size_t block_bytes, uint32_t class_index);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  std::byte* data() const { return range_.data(); }
  size_t size() const { return range_.length_bytes; }
  bool keeps_its_pages() const { return range_.kept_bytes() == size(); }
  size_t block_bytes() const { return block_bytes_; }
  uint32_t class_index() const { return class_index_; }
  bool contains(const std::byte* address) const { return address >= data() && address < data() + size(); }
  // As it is registered.
  provider::MemoryRange range() const;

  // The registration with this device, made at the first call. Thread-safe.
  Result<RegionRef> region(provider::Device& device);
  // The device is about to go; no RegionRef of it is left.
  void end_registration(const provider::Device& device);

  // With the pool's mutex.
  bool full() const { return free_.empty() && touched_ == block_count_; }
  bool unused() const { return used_ == 0; }
  // Whether the next block has pages already.
  bool next_has_pages() const { return !free_.empty(); }
  std::byte* take_block();
  void give_back_block(const std::byte* data);
  size_t committed_bytes() const { return touched_ * block_bytes_; }
  uint64_t last_used = 0;  // the pool's count of rests

  // By the only one that refers to it: ends the registrations and gives pages back, up to `budget_bytes`, which it
  // takes them from. True when all is done.
  bool release(size_t& budget_bytes);

 private:
  struct Registration {
    const provider::Device* device;
    std::unique_ptr<provider::MemoryRegion> region;
  };

  const std::shared_ptr<AddressSpace> space_;
  const ExtentRange range_;
  const size_t block_bytes_;
  const uint32_t class_index_;
  const size_t block_count_;
  const int fork_generation_;
  std::vector<size_t> free_;  // blocks that were in use before, by index
  size_t touched_ = 0;        // the first so many blocks were in use at least once
  size_t used_ = 0;
  size_t released_bytes_ = 0;
  std::mutex registrations_mutex_;
  std::vector<Registration> registrations_;
};

// Counts the forks that made this process: what was made under another number is a parent's.
int fork_generation();

}  // namespace rrpc::endpoint
