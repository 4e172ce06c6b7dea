// Which pages fresh memory gets, by what pieces of either kind took to bring in. Huge ones are several times faster
// where the kernel has some, and several times slower where it has to make room for them first. No I/O, no clock.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace rrpc {

// Thread-safe; of two that report at once one may be lost.
class PageChoice {
 public:
  // Huge pages serve later copies better, so small ones must be much quicker to be preferred.
  bool huge() const { return mean_huge_ns_.load() <= 2 * small_ns_.load(); }
  void took_small(TimeNs piece_ns) { small_ns_ = piece_ns; }
  // One slow piece among fast ones says little, two in a row are believed; so is one fast piece after that.
  void took_huge(TimeNs piece_ns) {
    const TimeNs mean = mean_huge_ns_.load();
    const TimeNs expected = mean > 0 ? mean : small_ns_.load() / 4;
    if (huge())
      mean_huge_ns_ = (expected * 3 + piece_ns) / 4;
    else
      mean_huge_ns_ = std::min(mean, piece_ns);
  }

 private:
  std::atomic<TimeNs> small_ns_{0};
  std::atomic<TimeNs> mean_huge_ns_{0};
};

}  // namespace rrpc
