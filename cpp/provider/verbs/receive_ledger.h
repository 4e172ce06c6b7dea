// What was posted to a receive queue and hasn't completed. Receives are used in the order posted. The newest of them
// may not have been given to the device yet.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace rrpc::provider::verbs {

struct PostedReceive {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t wr_id = kNone;  // the user's
  uint64_t address = 0;
  uint32_t length_bytes = 0;
  uint32_t lkey = 0;
};

class ReceiveLedger {
 public:
  explicit ReceiveLedger(uint32_t capacity)
      : capacity_(capacity), slots_(capacity == 0 ? 0 : std::bit_ceil(capacity)) {}

  bool empty() const { return first_ == end_; }
  // Whether the device has nothing of it any more.
  bool all_done() const { return first_ == given_; }
  size_t room() const { return capacity_ - static_cast<size_t>(end_ - first_); }
  bool full() const { return room() == 0; }
  void push(const PostedReceive& receive) {
    RRPC_CHECK(!full(), "the receive ledger is full");
    at(end_++) = receive;
  }
  // The receive that completed and comes back to its place, as those of a full queue do where its capacity is a power
  // of two and they are posted again in order. False: it isn't that.
  bool push_again(uint64_t wr_id) {
    if (full() || slots_.empty() || at(end_).wr_id != wr_id) return false;
    ++end_;
    return true;
  }
  // The oldest one's wr_id.
  uint64_t pop() {
    RRPC_CHECK(!empty(), "the receive ledger is empty");
    const uint64_t wr_id = at(first_++).wr_id;
    if (given_ < first_) given_ = first_;
    return wr_id;
  }

  // Those that the device hasn't been given, the oldest first.
  size_t waiting_count() const { return static_cast<size_t>(end_ - given_); }
  const PostedReceive& waiting(size_t index) const { return slots_[(given_ + index) & (slots_.size() - 1)]; }
  // It has taken so many of them.
  void given(size_t count) { given_ += count; }
  // It is to be given no more. Takes the newest one back.
  uint64_t drop_newest() {
    RRPC_CHECK(waiting_count() > 0, "the device has them all");
    return at(--end_).wr_id;
  }

 private:
  PostedReceive& at(uint64_t sequence) { return slots_[sequence & (slots_.size() - 1)]; }

  const uint32_t capacity_;
  std::vector<PostedReceive> slots_;  // a power of two of them
  uint64_t first_ = 0;
  uint64_t given_ = 0;
  uint64_t end_ = 0;
};

}  // namespace rrpc::provider::verbs
