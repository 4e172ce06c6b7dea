// The memory that one queue pair has opened to its peer, by rkey. For providers that check rkeys in software.
//
// An rkey is a slot index and that slot's generation, scrambled with a per-table secret: a key of another queue
// pair, an old key and a guessed key all miss. Slots are reused oldest first, so that a generation comes back
// only after millions of exposures.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "provider/provider.h"

namespace rrpc::provider {

struct Exposure {
  std::byte* address = nullptr;
  size_t length_bytes = 0;
  uint32_t access = 0;
};

class ExposureTable {
 public:
  static constexpr uint32_t kExposuresMax = 1u << 16;

  // A random secret in production, a seeded one under simulation.
  explicit ExposureTable(uint64_t secret);
  // With a secret from the kernel.
  ExposureTable();

  Result<uint32_t> add(const MemoryRegion& region, const std::byte* address, size_t length_bytes, uint32_t access);
  // False if there is no such key.
  bool remove(uint32_t rkey);
  bool live(uint32_t rkey) const { return find(rkey) != nullptr; }
  // Where [remote_address, +length_bytes) lies, or PermissionDenied naming what is wrong with it.
  Result<std::byte*> check(uint32_t rkey, uint64_t remote_address, uint64_t length_bytes, Access wanted) const;
  size_t size() const { return live_count_; }

 private:
  struct Slot {
    Exposure exposure;
    uint16_t generation = 0;
    bool used = false;
  };

  uint32_t scramble(uint32_t value) const;
  uint32_t unscramble(uint32_t value) const;
  uint16_t round(uint16_t half, int index) const;
  const Slot* find(uint32_t rkey) const;
  Result<uint16_t> take_slot();

  uint64_t secret_;
  std::vector<Slot> slots_;
  std::deque<uint16_t> free_;
  size_t live_count_ = 0;
};

}  // namespace rrpc::provider
