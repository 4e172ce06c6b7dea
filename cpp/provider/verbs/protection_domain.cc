#include "provider/verbs/protection_domain.h"

#include <cerrno>

#include "provider/verbs/errors.h"
#include "provider/verbs/registering.h"

namespace rrpc::provider::verbs {

Result<std::shared_ptr<ProtectionDomain>> ProtectionDomain::create(ibv_context* context, bool with_windows,
                                                                   bool on_demand) {
  errno = 0;
  ibv_pd* handle = ibv_alloc_pd(context);
  if (handle == nullptr) return verbs_error(errno, "making a protection domain");
  const bool iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;
  return std::shared_ptr<ProtectionDomain>(new ProtectionDomain(handle, with_windows, on_demand, iwarp));
}

ProtectionDomain::~ProtectionDomain() {
  if (fork_generation_ != fork_generation()) return;
  for (const auto& [owner, registration] : registrations_) ibv_dereg_mr(registration);
  ibv_dealloc_pd(handle_);
}

Result<ibv_mr*> ProtectionDomain::register_range(uint64_t owner, const MemoryRange& range) {
  int access = local_rights(range) | paging_right(range);
  if (with_windows_) access |= IBV_ACCESS_MW_BIND;
  // iWARP: a READ's answer comes as a write by the peer.
  if (iwarp_ && range.read_sink) access |= IBV_ACCESS_REMOTE_WRITE;
  RRPC_ASSIGN_OR_RETURN(ibv_mr * registration,
                        register_with_adapter(handle_, range, range.address, range.length_bytes, access));
  std::lock_guard lock(mutex_);
  registrations_.emplace(owner, registration);
  return registration;
}

void ProtectionDomain::unregister(uint64_t owner) {
  ibv_mr* registration = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = registrations_.find(owner);
    if (found == registrations_.end()) return;
    registration = found->second;
    registrations_.erase(found);
  }
  ibv_dereg_mr(registration);
}

}  // namespace rrpc::provider::verbs
