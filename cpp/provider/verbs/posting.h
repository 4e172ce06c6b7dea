// Receives that go to an adapter with one call, and thus one doorbell.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <span>

namespace rrpc::provider::verbs {

struct PostedReceives {
  size_t count = 0;      // of the first ones, which the adapter took
  int error_number = 0;  // why it didn't take the next one; 0: it took all
};

// Links the requests, of which there is one at least, in their order.
PostedReceives post_linked(ibv_qp* queue_pair, std::span<ibv_recv_wr> requests);
PostedReceives post_linked(ibv_srq* shared_receives, std::span<ibv_recv_wr> requests);

}  // namespace rrpc::provider::verbs
