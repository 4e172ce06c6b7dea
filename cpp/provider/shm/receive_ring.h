// The receiver's side of its own ring: what is posted, in private copies, and what has landed.
#pragma once

#include <algorithm>
#include <vector>

#include "provider/provider.h"
#include "provider/shm/control_segment.h"

namespace rrpc::provider::shm {

class ReceiveRing {
 public:
  ReceiveRing(const ControlSegment& control, uint32_t depth)
      : entries_(&control.receive(0)), mask_(control.ring_entries() - 1), depth_(depth), posted_(mask_ + 1) {}

  bool full() const { return tail_ - head_ == depth_; }
  bool empty() const { return tail_ == head_; }
  void post(uint64_t wr_id, uint32_t slab_id, uint64_t offset_bytes, uint32_t length_bytes) {
    posted_[tail_ & mask_] = {wr_id, length_bytes};
    ReceiveEntry& posted = entry(tail_);
    posted.slab_id.store(slab_id, std::memory_order_relaxed);
    posted.offset_bytes.store(offset_bytes, std::memory_order_relaxed);
    posted.posted_bytes.store(length_bytes, std::memory_order_relaxed);
    posted.state.store(posted_state(tail_), std::memory_order_release);
    ++tail_;
  }

  // A receive that comes back to its entry: what stands there for the sender is what stood there before.
  bool post_again(uint64_t wr_id) {
    const Posted& posted = posted_[tail_ & mask_];
    if (posted.wr_id != wr_id || full()) return false;
    entry(tail_).state.store(posted_state(tail_), std::memory_order_release);
    ++tail_;
    return true;
  }

  bool landed() const { return entry(head_).state.load(std::memory_order_seq_cst) == landed_state(head_) && !empty(); }
  NextMessage next_message() const { return {.word = &entry(head_).state, .value = landed_state(head_)}; }
  // The next landed message. kLocalLength where it claims more than was posted.
  void take_landed(Completion& completion) {
    const Posted& posted = posted_[head_ & mask_];
    completion.wr_id = posted.wr_id;
    completion.opcode = Opcode::kReceive;
    const ReceiveEntry& taken = entry(head_);
    const uint32_t landed = taken.landed_bytes.load(std::memory_order_relaxed);
    const bool in_entry = (landed & kLandedInEntry) != 0;
    const uint32_t room_bytes = in_entry ? std::min(kEntryMessageBytes, posted.length_bytes) : posted.length_bytes;
    completion.place = in_entry ? taken.message : nullptr;
    completion.length_bytes = landed & ~kLandedInEntry;
    completion.status = completion.length_bytes <= room_bytes ? WcStatus::kSuccess : WcStatus::kLocalLength;
    ++head_;
  }
  // After the end: takes back what nobody has begun to fill. A sender that is in the middle of a copy isn't waited for:
  // what it writes to is shared with that one peer alone, which can write there as long as it maps it anyway.
  void withdraw();
  Completion take_flushed();

 private:
  struct Posted {
    uint64_t wr_id = UINT64_MAX;  // none was posted there yet
    uint32_t length_bytes = 0;
  };

  ReceiveEntry& entry(uint32_t sequence) const { return entries_[sequence & mask_]; }

  ReceiveEntry* const entries_;
  const uint32_t mask_;  // a power of two of them
  const uint32_t depth_;
  uint32_t head_ = 0;  // the oldest posted receive
  uint32_t tail_ = 0;  // the next to post
  std::vector<Posted> posted_;
};

}  // namespace rrpc::provider::shm
