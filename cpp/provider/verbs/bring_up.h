// A queue pair walked through its states by hand: RESET -> INIT -> RTR -> RTS, and to the error state.
#pragma once

#include <infiniband/verbs.h>

#include "base/result.h"
#include "provider/verbs/address.h"
#include "provider/verbs/introduction.h"

namespace rrpc::provider::verbs {

Status bring_to_init(ibv_qp* queue_pair, const Place& place);

struct Path {
  Introduction own;
  Introduction peer;
  uint32_t responder_resources = 0;  // READs of the peer served at once
  uint32_t initiator_depth = 0;
};
// Ready to receive, then to send.
Status bring_to_rts(ibv_qp* queue_pair, const Place& place, const Path& path);

// What is outstanding is flushed.
void bring_to_error(ibv_qp* queue_pair);

}  // namespace rrpc::provider::verbs
