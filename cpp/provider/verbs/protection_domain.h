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
  static Result<std::shared_ptr<ProtectionDomain>> create(ibv_context* context, bool with_windows);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;

  ibv_pd* handle() const { return handle_; }
  // `owner` is what unregister() names later. FailedPrecondition for memory that an adapter can't have.
  Result<ibv_mr*> register_range(uint64_t owner, const MemoryRange& range);
  void unregister(uint64_t owner);

 private:
  ProtectionDomain(ibv_pd* handle, bool with_windows, bool iwarp)
      : handle_(handle), with_windows_(with_windows), iwarp_(iwarp), fork_generation_(fork_generation()) {}

  ibv_pd* const handle_;
  const bool with_windows_;
  const bool iwarp_;
  const uint32_t fork_generation_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, ibv_mr*> registrations_;
};

}  // namespace rrpc::provider::verbs
