#include "provider/shm/receive_ring.h"

namespace rrpc::provider::shm {

void ReceiveRing::post(uint64_t wr_id, uint32_t slab_id, uint64_t offset_bytes, uint32_t length_bytes) {
  posted_[tail_ & (control_.ring_entries() - 1)] = {wr_id, length_bytes};
  ReceiveEntry& entry = control_.receive(tail_);
  entry.slab_id.store(slab_id, std::memory_order_relaxed);
  entry.offset_bytes.store(offset_bytes, std::memory_order_relaxed);
  entry.posted_bytes.store(length_bytes, std::memory_order_relaxed);
  entry.state.store(posted_state(tail_), std::memory_order_release);
  ++tail_;
}

Completion ReceiveRing::take_landed() {
  const Posted& posted = posted_[head_ & (control_.ring_entries() - 1)];
  const uint32_t landed_bytes = control_.receive(head_).landed_bytes.load(std::memory_order_relaxed);
  ++head_;
  const bool fits = landed_bytes <= posted.length_bytes;
  return {posted.wr_id, Opcode::kReceive, fits ? WcStatus::kSuccess : WcStatus::kLocalLength, landed_bytes, 0};
}

void ReceiveRing::withdraw() {
  for (uint32_t sequence = head_; sequence != tail_; ++sequence) {
    uint32_t expected = posted_state(sequence);
    control_.receive(sequence).state.compare_exchange_strong(expected, kWithdrawn, std::memory_order_acq_rel);
  }
}

Completion ReceiveRing::take_flushed() {
  const Posted& posted = posted_[head_++ & (control_.ring_entries() - 1)];
  return {posted.wr_id, Opcode::kReceive, WcStatus::kFlushed, 0, 0};
}

}  // namespace rrpc::provider::shm
