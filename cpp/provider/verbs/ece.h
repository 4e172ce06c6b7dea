// Enhanced connection establishment (ECE): what two adapters of one vendor can do with each other beyond the standard.
// librdmacm sees to it for the queue pairs that rdma_create_qp() makes: it sends their options with the request to
// connect, sets the client's on the server's queue pair and those of the answer on the client's. Where queue pairs are
// connected by hand, these functions do the same.
#pragma once

#include <infiniband/verbs.h>

#include "base/result.h"
#include "provider/verbs/introduction.h"

namespace rrpc::provider::verbs {

// The options that a queue pair offers, or those that it has once it is connected. Nothing where libibverbs (before
// rdma-core 31), the kernel or the adapter doesn't know them.
Result<Ece> query_ece(ibv_qp* queue_pair);

// To be called before the queue pair is ready to receive: sets the peer's options if it is of the vendor of `own`, no
// options otherwise. Does nothing if the queue pair has none of its own.
Status set_ece(ibv_qp* queue_pair, const Ece& own, const Ece& peer);

}  // namespace rrpc::provider::verbs
