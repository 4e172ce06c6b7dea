#include "base/hash_probes.h"

#include <algorithm>
#include <vector>

namespace rrpc {

bool hashes_collide(std::span<const int64_t> hashes) {
  constexpr unsigned kPerturbShift = 5;
  constexpr size_t kSizeMin = 8;
  uint64_t probes_left = kProbesPerKeyMax * (hashes.size() + kSizeMin);
  std::vector<bool> taken;
  for (size_t size = kSizeMin;; size *= 2) {
    const size_t fill = std::min(size / 3 * 2, hashes.size());
    const size_t mask = size - 1;
    taken.assign(size, false);
    for (const int64_t hash : hashes.first(fill)) {
      auto perturb = static_cast<uint64_t>(hash);
      size_t slot = perturb & mask;
      while (taken[slot]) {
        if (--probes_left == 0) return true;
        perturb >>= kPerturbShift;
        slot = (slot * 5 + perturb + 1) & mask;
      }
      taken[slot] = true;
    }
    if (fill == hashes.size()) return false;
  }
}

}  // namespace rrpc
