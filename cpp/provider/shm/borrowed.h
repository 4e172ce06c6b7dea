// Ranges that change hands without a copy: the peer's that this process reads in place, and this process's that the
// peer does. A word in the owner's table of exposures says who has a range (LendState); the two sides keep that table
// mapped for as long as a range is lent, so that it can be given back after the connection's end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "provider/lending.h"
#include "provider/shm/control_segment.h"
#include "provider/shm/peer_process.h"
#include "provider/shm/slab.h"

namespace rrpc::provider::shm {

// Each process has a list of its ranges: when it forks, what is read in place is copied for the child, for which the
// owner doesn't wait. What can't be copied, for want of memory, can't be read there (SIGSEGV).
class ShmBorrowedRange : public BorrowedRange {
 public:
  // Null where the owner has taken the offer back, or the range is borrowed already.
  static std::unique_ptr<BorrowedRange> take(std::shared_ptr<Slab> slab, std::byte* data, size_t size,
                                             std::shared_ptr<std::atomic<uint32_t>> word, uint32_t generation);
  ~ShmBorrowedRange() override;

 private:
  friend struct BorrowedRanges;
  ShmBorrowedRange(std::shared_ptr<Slab> slab, std::byte* data, size_t size,
                   std::shared_ptr<std::atomic<uint32_t>> word, uint32_t generation);

  const std::shared_ptr<Slab> slab_;
  const std::shared_ptr<std::atomic<uint32_t>> word_;
  const uint32_t generation_;
  const uint32_t fork_generation_;
  bool taken_ = false;
  ShmBorrowedRange* previous_ = nullptr;  // in the list
  ShmBorrowedRange* next_ = nullptr;
  std::byte* copy_ = nullptr;  // for the child, while the process forks
};

class ShmLoan : public Loan {
 public:
  ShmLoan(std::shared_ptr<std::atomic<uint32_t>> word, uint32_t generation, std::shared_ptr<PeerProcess> borrower)
      : word_(std::move(word)), generation_(generation), borrower_(std::move(borrower)) {}
  bool returned() const override { return word_->load(std::memory_order_acquire) != lend_word(generation_, kTaken); }
  bool abandoned() const override { return borrower_->ended(); }
  const void* borrower() const override { return borrower_.get(); }

 private:
  const std::shared_ptr<std::atomic<uint32_t>> word_;
  const uint32_t generation_;
  const std::shared_ptr<PeerProcess> borrower_;
};

}  // namespace rrpc::provider::shm
