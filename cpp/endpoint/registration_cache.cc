#include "endpoint/registration_cache.h"

#include <utility>

#include "endpoint/counters.h"

namespace rrpc::endpoint {

Result<RegionRef> RegistrationCache::register_once(const provider::MemoryRange& range) {
  struct Registered {
    std::shared_ptr<Slab> slab;  // outlives the registration
    std::unique_ptr<provider::MemoryRegion> region;
  };
  auto slab = pool_.find(range.address);
  RRPC_ASSIGN_OR_RETURN(auto made, device_.register_memory(range));
  count(counters().registrations_made);
  if (slab == nullptr) return RegionRef(std::move(made));
  auto registered = std::make_shared<Registered>(Registered{std::move(slab), std::move(made)});
  provider::MemoryRegion* const region = registered->region.get();
  return RegionRef(std::move(registered), region);
}

Result<RegionRef> RegistrationCache::get(std::byte* address, size_t length_bytes, uint64_t owner_id, bool only_read) {
  if (const auto slab = pool_.find(address)) return slab->region(device_);
  const Key key{owner_id, address, length_bytes, only_read};
  if (owner_id != kNoOwner) {
    std::lock_guard lock(mutex_);
    if (auto it = by_key_.find(key); it != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      count(counters().registrations_reused);
      return it->second->region;
    }
  }
  RRPC_ASSIGN_OR_RETURN(
      RegionRef region,
      register_once({.address = address, .length_bytes = length_bytes, .of_user = true, .only_read = only_read}));
  if (owner_id == kNoOwner || length_bytes > pinned_bytes_max_) return region;
  std::lock_guard lock(mutex_);
  if (by_key_.contains(key)) return region;  // another thread was quicker
  entries_.push_front({key, region});
  by_key_[key] = entries_.begin();
  pinned_bytes_ += length_bytes;
  evict_over_limit_locked();
  return region;
}

void RegistrationCache::evict_over_limit_locked() {
  while (pinned_bytes_ > pinned_bytes_max_) {
    pinned_bytes_ -= std::get<2>(entries_.back().key);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

void RegistrationCache::evict_owner(uint64_t owner_id) {
  std::lock_guard lock(mutex_);
  auto it = by_key_.lower_bound(Key{owner_id, nullptr, 0, false});
  while (it != by_key_.end() && std::get<0>(it->first) == owner_id) {
    pinned_bytes_ -= std::get<2>(it->first);
    entries_.erase(it->second);
    it = by_key_.erase(it);
  }
}

size_t RegistrationCache::pinned_bytes() const {
  std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

}  // namespace rrpc::endpoint
