// xoshiro256** seeded by splitmix64: a seed replays on every platform, which std distributions don't promise.
#pragma once

#include <bit>
#include <cstdint>

namespace rrpc::provider::sim {

class Rng {
 public:
  explicit Rng(uint64_t seed) {
    for (uint64_t& word : state_) word = splitmix(seed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  // In [min, max]; min when the range is empty.
  int64_t between(int64_t min, int64_t max) {
    if (max <= min) return min;
    return min + static_cast<int64_t>(next() % (static_cast<uint64_t>(max - min) + 1));
  }
  bool chance(double probability) {
    if (probability <= 0) return false;
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }

 private:
  static uint64_t splitmix(uint64_t& seed) {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_[4];
};

}  // namespace rrpc::provider::sim
