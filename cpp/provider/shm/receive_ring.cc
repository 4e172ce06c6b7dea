#include "provider/shm/receive_ring.h"

namespace rrpc::provider::shm {

void ReceiveRing::withdraw() {
  for (uint32_t sequence = head_; sequence != tail_; ++sequence) {
    uint32_t expected = posted_state(sequence);
    entry(sequence).state.compare_exchange_strong(expected, kWithdrawn, std::memory_order_acq_rel);
  }
}

Completion ReceiveRing::take_flushed() {
  const Posted& posted = posted_[head_++ & mask_];
  return {posted.wr_id, Opcode::kReceive, WcStatus::kFlushed, 0, 0};
}

}  // namespace rrpc::provider::shm
