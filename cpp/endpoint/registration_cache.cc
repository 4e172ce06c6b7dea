#include "endpoint/registration_cache.h"

#include <utility>

#include "endpoint/counters.h"

namespace rrpc::endpoint {

Result<RegionRef> RegistrationCache::slab_region(const Slab& slab) {
  std::lock_guard lock(mutex_);
  if (auto it = slab_regions_.find(&slab); it != slab_regions_.end()) return it->second;
  RRPC_ASSIGN_OR_RETURN(auto region, device_.register_memory(slab.range()));
  count(counters().registrations_made);
  return slab_regions_[&slab] = RegionRef(std::move(region));
}

Result<RegionRef> RegistrationCache::get(std::byte* address, size_t length_bytes, uint64_t owner_id) {
  if (const Slab* slab = pool_.find(address)) return slab_region(*slab);
  const Key key{owner_id, address, length_bytes};
  if (owner_id != kNoOwner) {
    std::lock_guard lock(mutex_);
    if (auto it = by_key_.find(key); it != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      count(counters().registrations_reused);
      return it->second->region;
    }
  }
  RRPC_ASSIGN_OR_RETURN(auto made, device_.register_memory({address, length_bytes, -1, false}));
  count(counters().registrations_made);
  RegionRef region(std::move(made));
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
  auto it = by_key_.lower_bound(Key{owner_id, nullptr, 0});
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
