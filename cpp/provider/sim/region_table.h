// The memory registered with the network, and how much of it is in use. Requests name regions by key, so that one whose
// region was destroyed too soon is found and never touched.
#pragma once

#include <cstdint>
#include <map>

#include "provider/provider.h"

namespace rrpc::provider::sim {

struct Host;

struct RegionRecord {
  Host* host;
  MemoryRange range;
  uint32_t posted_count = 0;
  uint32_t exposed_count = 0;

  bool contains(const std::byte* address, size_t length_bytes) const {
    const auto start = reinterpret_cast<uintptr_t>(range.address);
    const auto first = reinterpret_cast<uintptr_t>(address);
    return first >= start && length_bytes <= range.length_bytes && first - start <= range.length_bytes - length_bytes;
  }
};

class RegionTable {
 public:
  uint32_t add(Host* host, const MemoryRange& range) {
    records_.emplace(++last_key_, RegionRecord{host, range});
    return last_key_;
  }
  void remove(uint32_t lkey) { records_.erase(lkey); }
  RegionRecord* find(uint32_t lkey) {
    auto it = records_.find(lkey);
    return it == records_.end() ? nullptr : &it->second;
  }

 private:
  uint32_t last_key_ = 0;
  std::map<uint32_t, RegionRecord> records_;
};

}  // namespace rrpc::provider::sim
