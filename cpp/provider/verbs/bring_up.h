// A queue pair walked through its states by hand: RESET -> INIT -> RTR -> RTS, and to the error state.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/result.h"
#include "provider/verbs/address.h"
#include "provider/verbs/introduction.h"

namespace rrpc::provider::verbs {

// An ACK is waited for 4.096 us x 2^16 = 0.27 s; with these retries a peer that has vanished is given up after some
// seconds. 7 would mean for ever on Soft-RoCE. rdma_cm's queue pairs have the same.
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetryCount = 6;

Status bring_to_init(ibv_qp* queue_pair, const Place& place);

struct Path {
  Introduction own;
  Introduction peer;
  uint32_t responder_resources = 0;  // READs of the peer served at once
  uint32_t initiator_depth = 0;
};
// Ready to receive, then to send. Gives the ECE that both ends have then: of the peer's what this end can do.
Result<Ece> bring_to_rts(ibv_qp* queue_pair, const Place& place, const Path& path);

// What is outstanding is flushed.
void bring_to_error(ibv_qp* queue_pair);

}  // namespace rrpc::provider::verbs
