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
      : control_(control), depth_(depth), posted_(control.ring_entries()) {}

  bool full() const { return tail_ - head_ == depth_; }
  bool empty() const { return tail_ == head_; }
  void post(uint64_t wr_id, uint32_t slab_id, uint64_t offset_bytes, uint32_t length_bytes) {
    posted_[tail_ & (control_.ring_entries() - 1)] = {wr_id, length_bytes};
    ReceiveEntry& entry = control_.receive(tail_);
    entry.slab_id.store(slab_id, std::memory_order_relaxed);
    entry.offset_bytes.store(offset_bytes, std::memory_order_relaxed);
    entry.posted_bytes.store(length_bytes, std::memory_order_relaxed);
    entry.state.store(posted_state(tail_), std::memory_order_release);
    ++tail_;
  }

  bool landed() const {
    return control_.receive(head_).state.load(std::memory_order_seq_cst) == landed_state(head_) && !empty();
  }
  NextMessage next_message() const { return {.word = &control_.receive(head_).state, .value = landed_state(head_)}; }
  // The next landed message. kLocalLength where it claims more than was posted.
  void take_landed(Completion& completion) {
    const Posted& posted = posted_[head_ & (control_.ring_entries() - 1)];
    completion.wr_id = posted.wr_id;
    completion.opcode = Opcode::kReceive;
    const ReceiveEntry& entry = control_.receive(head_);
    const uint32_t landed = entry.landed_bytes.load(std::memory_order_relaxed);
    const bool in_entry = (landed & kLandedInEntry) != 0;
    const uint32_t room_bytes = in_entry ? std::min(kEntryMessageBytes, posted.length_bytes) : posted.length_bytes;
    completion.place = in_entry ? entry.message : nullptr;
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
    uint64_t wr_id = 0;
    uint32_t length_bytes = 0;
  };

  const ControlSegment& control_;
  uint32_t depth_;
  uint32_t head_ = 0;  // the oldest posted receive
  uint32_t tail_ = 0;  // the next to post
  std::vector<Posted> posted_;
};

}  // namespace rrpc::provider::shm
