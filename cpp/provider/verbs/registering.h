// Memory made known to an adapter: the host's by its address, a device's by its dma-buf.
#pragma once

#include <infiniband/verbs.h>

#include "provider/provider.h"

namespace rrpc::provider::verbs {

// What the adapter itself may do there.
inline int local_rights(const MemoryRange& range) { return range.only_read ? 0 : IBV_ACCESS_LOCAL_WRITE; }

// Whether PCIe may bring what an adapter writes in another order, as `value` of the environment's RRPC_RELAXED_ORDERING
// has it: yes, unless that is 0. A completion still comes after all that it is of, and nothing else is waited for.
bool relaxed_ordering_wanted(const char* value);

// Whether the adapter of `context` may bring in pages on demand (ODP) for all that a reliable connection does here, so
// that registering pins nothing.
bool offers_on_demand(ibv_context* context);

// Whether that is to be used, as `value` of the environment's RRPC_ODP has it: only if that is 1.
bool on_demand_wanted(const char* value);

// ibv_reg_mr for a part of `range`, or ibv_reg_dmabuf_mr where it has a dma-buf (rdma-core 34, Linux 5.12), with errors
// that name their cure: FailedPrecondition for memory that an adapter can't have, Unimplemented where the library, the
// kernel or the adapter's driver takes no dma-buf.
// IBV_ACCESS_ON_DEMAND in `access` is a wish: what can't be brought in on demand, as the rights ask for it, is pinned.
Result<ibv_mr*> register_with_adapter(ibv_pd* domain, const MemoryRange& range, const std::byte* address,
                                      size_t length_bytes, int access);

}  // namespace rrpc::provider::verbs
