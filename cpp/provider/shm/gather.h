// Scatter/gather lists walked piece by piece.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "provider/provider.h"

namespace rrpc::provider::shm {

inline uint64_t total_bytes(std::span<const Sge> sges) {
  uint64_t total = 0;
  for (const Sge& sge : sges) total += sge.length_bytes;
  return total;
}

inline bool inside_their_regions(std::span<const Sge> sges, bool inline_data) {
  return std::ranges::all_of(sges, [&](const Sge& sge) {
    return sge.region == nullptr ? inline_data : sge.region->contains(sge.address, sge.length_bytes);
  });
}

inline void gather(std::span<const Sge> sges, std::byte* to) {
  for (const Sge& sge : sges) {
    if (sge.length_bytes != 0) std::memcpy(to, sge.address, sge.length_bytes);
    to += sge.length_bytes;
  }
}

// A place within a list, and how far the walk has come.
class SgeCursor {
 public:
  explicit SgeCursor(std::span<const Sge> sges) : sges_(sges.begin(), sges.end()) {}

  // Calls visit(address, length_bytes) for the pieces of the next `count` bytes.
  template <typename Visit>
  void advance(uint64_t count, Visit visit) {
    while (count > 0 && index_ < sges_.size()) {
      const Sge& sge = sges_[index_];
      const uint64_t piece = std::min<uint64_t>(count, sge.length_bytes - offset_);
      if (piece > 0) visit(sge.address + offset_, piece);
      count -= piece;
      offset_ += piece;
      if (offset_ < sge.length_bytes) continue;
      offset_ = 0;
      ++index_;
    }
  }
  std::span<const Sge> sges() const { return sges_; }

 private:
  std::vector<Sge> sges_;
  size_t index_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace rrpc::provider::shm
