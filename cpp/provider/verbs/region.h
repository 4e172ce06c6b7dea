// Memory that adapters may use: registered with each protection domain when first used there.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "provider/provider.h"
#include "provider/verbs/protection_domain.h"

namespace rrpc::provider::verbs {

class VerbsRegion final : public MemoryRegion {
 public:
  explicit VerbsRegion(const MemoryRange& range);
  ~VerbsRegion() override;

  // Unique in the process, never reused, not 0.
  uint64_t id() const { return id_; }
  // Thread-safe. The registration lives until this region or the domain goes.
  Result<ibv_mr*> registration_in(const std::shared_ptr<ProtectionDomain>& domain) const;

 private:
  struct Registered {
    std::weak_ptr<ProtectionDomain> domain;
    const ProtectionDomain* identity;  // only compared, and only while `domain` lives
    ibv_mr* registration;
  };

  const uint64_t id_;
  const uint32_t fork_generation_;
  mutable std::mutex mutex_;
  mutable std::vector<Registered> registered_;
};

}  // namespace rrpc::provider::verbs
