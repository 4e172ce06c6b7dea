// What this process has lent to peers, who read it in place and may keep it for longer than the call that it was for:
// a list of the process, since a loan outlives its connection. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "endpoint/exposure.h"
#include "provider/lending.h"

namespace rrpc::endpoint {

// Bytes that one connection has lent.
struct LentBytes {
  explicit LentBytes(size_t limit) : limit_bytes(limit) {}
  const size_t limit_bytes;  // SIZE_MAX: the process's limit is the only one
  std::atomic<size_t> used{0};
};

class Lending {
 public:
  static Lending& process();

  // Counts bytes that are offered to a peer: a charge, or null where a limit has no room for them.
  std::unique_ptr<LendCharge> charge(size_t bytes, const std::shared_ptr<LentBytes>& connection);
  // Keeps what a peer has taken until the peer gives it back or its process ends.
  void keep(Exposure exposure, std::unique_ptr<provider::Loan> loan);
  // Looks at a few ranges, in turn, and lets go of those that were given back. Cheap: for whoever lends or allocates.
  void collect_some();
  // Lets go of all that was given back, and of what ended processes had: a system call for each process that borrows.
  void collect();
  // collect(), now and again. Gives when it is due again.
  TimeNs tend(TimeNs now);

  // Half of the pool's.
  static size_t limit_bytes();
  // Ranges that may be lent at a time: each may keep a mapping of its connection's table.
  static constexpr size_t kRangesMax = 16384;

 private:
  friend class LendCharge;
  struct Kept {
    Exposure exposure;
    std::unique_ptr<provider::Loan> loan;
  };
  bool add(size_t bytes, LentBytes& connection);

  std::mutex mutex_;
  std::vector<Kept> kept_;
  size_t next_look_ = 0;  // in kept_
  std::atomic<size_t> kept_count_{0};
  std::atomic<size_t> charge_count_{0};
  std::atomic<size_t> refusals_{0};
  std::atomic<size_t> lent_bytes_{0};
  std::atomic<TimeNs> next_tend_{0};
};

// Gives its bytes back to the limits.
class LendCharge {
 public:
  LendCharge(Lending& lending, std::shared_ptr<LentBytes> connection, size_t bytes)
      : lending_(lending), connection_(std::move(connection)), bytes_(bytes) {}
  ~LendCharge();
  LendCharge(const LendCharge&) = delete;
  LendCharge& operator=(const LendCharge&) = delete;

 private:
  Lending& lending_;
  const std::shared_ptr<LentBytes> connection_;
  const size_t bytes_;
};

}  // namespace rrpc::endpoint
