// A protection domain and what is registered in it. Thread-safe.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/result.h"
#include "provider/provider.h"
#include "provider/verbs/fork.h"

namespace rrpc::provider::verbs {

class ProtectionDomain {
 public:
  // `with_windows`: its registrations may have memory windows bound to them, and give peers nothing of themselves.
  // `on_demand`: the adapter brings in the pages of users' arrays on demand, and nothing of them is pinned.
  static Result<std::shared_ptr<ProtectionDomain>> create(ibv_context* context, bool with_windows, bool on_demand);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;

  ibv_pd* handle() const { return handle_; }
  // With which pages of a range are brought in on demand, where that is so.
  int paging_right(const MemoryRange& range) const { return on_demand_ && range.of_user ? IBV_ACCESS_ON_DEMAND : 0; }
  // `owner` is what unregister() names later. FailedPrecondition for memory that an adapter can't have.
  Result<ibv_mr*> register_range(uint64_t owner, const MemoryRange& range);
  void unregister(uint64_t owner);

 private:
  ProtectionDomain(ibv_pd* handle, bool with_windows, bool on_demand, bool iwarp)
      : handle_(handle),
        with_windows_(with_windows),
        on_demand_(on_demand),
        iwarp_(iwarp),
        fork_generation_(fork_generation()) {}

  ibv_pd* const handle_;
  const bool with_windows_;
  const bool on_demand_;
  const bool iwarp_;
  const uint32_t fork_generation_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, ibv_mr*> registrations_;
};

}  // namespace rrpc::provider::verbs
