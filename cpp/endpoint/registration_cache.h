// Registered memory by owner. Pool slabs keep their registrations themselves; ordinary memory is keyed on the
// object that owns it, so that nothing goes stale when an address is used again: the owner's end evicts
// its entries (evict_owner), and least use evicts within a limit of pinned bytes. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/result.h"
#include "endpoint/pool.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

constexpr uint64_t kNoOwner = 0;  // not cached: registered for this use only

class RegistrationCache {
 public:
  RegistrationCache(provider::Device& device, Pool& pool, size_t pinned_bytes_max)
      : device_(device), pool_(pool), pinned_bytes_max_(pinned_bytes_max) {}
  // The device may go after it: no registration of it is left, once every RegionRef is gone.
  ~RegistrationCache() { pool_.end_registrations(device_); }
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // For one use. Pool memory keeps its pages meanwhile, whether its block is in use or not.
  Result<RegionRef> register_once(const provider::MemoryRange& range);
  // only_read: see provider::MemoryRange. Pool memory is registered for all uses.
  Result<RegionRef> get(std::byte* address, size_t length_bytes, uint64_t owner_id, bool only_read = false);
  void evict_owner(uint64_t owner_id);
  size_t pinned_bytes() const;

 private:
  using Key = std::tuple<uint64_t, std::byte*, size_t, bool>;
  struct Entry {
    Key key;
    RegionRef region;
  };

  void evict_over_limit_locked();

  provider::Device& device_;
  Pool& pool_;
  const size_t pinned_bytes_max_;
  mutable std::mutex mutex_;
  size_t pinned_bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> by_key_;
};

}  // namespace rrpc::endpoint
