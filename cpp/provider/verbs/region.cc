#include "provider/verbs/region.h"

#include <atomic>

namespace rrpc::provider::verbs {

static uint64_t next_region_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

VerbsRegion::VerbsRegion(const MemoryRange& range)
    : MemoryRegion(range, 0), id_(next_region_id()), fork_generation_(fork_generation()) {}

VerbsRegion::~VerbsRegion() {
  if (fork_generation_ != fork_generation()) return;
  for (const Registered& registered : registered_) {
    if (const auto domain = registered.domain.lock()) domain->unregister(id_);
  }
}

Result<ibv_mr*> VerbsRegion::registration_in(const std::shared_ptr<ProtectionDomain>& domain) const {
  std::lock_guard lock(mutex_);
  for (const Registered& registered : registered_) {
    // A domain at the address of one that has gone is another.
    if (registered.identity == domain.get() && !registered.domain.expired()) return registered.registration;
  }
  std::erase_if(registered_, [](const Registered& registered) { return registered.domain.expired(); });
  RRPC_ASSIGN_OR_RETURN(ibv_mr * registration, domain->register_range(id_, range()));
  registered_.push_back({domain, domain.get(), registration});
  return registration;
}

}  // namespace rrpc::provider::verbs
