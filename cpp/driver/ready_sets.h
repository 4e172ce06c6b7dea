// Which armed connections have something, of those whose peers raise a bit for it (provider::ReadyBits).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "provider/ready_bits.h"

namespace rrpc::driver {

// Used by one poller at a time.
class ReadySets {
 public:
  // A bit stands for one connection at a time: the one added last.
  void add(const std::shared_ptr<provider::ReadyBits>& bits, uint32_t bit, uint64_t connection_id);
  // The connections whose bits were raised since the last call. Where the function throws, those that it hasn't seen to
  // stay raised.
  template <typename Function>
  void take(Function&& function) {
    for (Set& set : sets_) {
      const uint32_t words = set.bits->word_count();
      for (uint32_t word = 0; word < words; ++word) {
        uint64_t raised = set.bits->take(word);
        try {
          for (; raised != 0; raised &= raised - 1) {
            const size_t bit = size_t{word} * provider::ReadyBits::kBitsPerWord + std::countr_zero(raised);
            if (bit < set.ids.size() && set.ids[bit] != 0) function(set.ids[bit]);
          }
        } catch (...) {
          set.bits->put_back(word, raised);
          throw;
        }
      }
    }
  }
  // Before the poller sleeps: from now on whoever raises a bit wakes it. False: one is raised already.
  bool arm();
  void disarm();
  // While asleep: a peer that has died, or loses its connection, may have taken the bell with it.
  TimeNs look_again_at() const { return sets_.empty() ? kNever : now_ns() + kNapMax; }
  // Lets go of the bits of a process that is gone; looks at one at a time.
  void tidy();

 private:
  static constexpr TimeNs kNapMax = 200 * kMillisecond;

  struct Set {  // of one peer process
    std::shared_ptr<provider::ReadyBits> bits;
    std::vector<uint64_t> ids;  // by bit; 0: none
  };
  std::vector<Set> sets_;
  std::unordered_map<const provider::ReadyBits*, size_t> places_;
  size_t next_to_tidy_ = 0;
};

}  // namespace rrpc::driver
