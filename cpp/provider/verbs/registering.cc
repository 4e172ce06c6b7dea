#include "provider/verbs/registering.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "provider/verbs/errors.h"
#include "provider/verbs/library.h"

namespace rrpc::provider::verbs {
namespace {

using RegisterDmabuf = ibv_mr* (*)(ibv_pd*, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

Result<ibv_mr*> register_dmabuf(ibv_pd* domain, const MemoryRange& range, const std::byte* address, size_t length_bytes,
                                int access) {
  static const auto register_in_library = reinterpret_cast<RegisterDmabuf>(find_in_library("ibv_reg_dmabuf_mr"));
  if (register_in_library == nullptr) {
    return Status(
        StatusCode::kUnimplemented,
        std::string("libibverbs can't register memory of a device (rdma-core 34 and later can)") + kStageCure);
  }
  const uint64_t offset = range.file_offset + static_cast<uint64_t>(address - range.address);
  errno = 0;
  ibv_mr* registration =
      register_in_library(domain, offset, length_bytes, reinterpret_cast<uint64_t>(address), range.dmabuf_fd, access);
  if (registration != nullptr) return registration;
  const int error_number = errno;
  if (error_number == EOPNOTSUPP || error_number == ENOSYS || error_number == EPROTONOSUPPORT) {
    return Status(StatusCode::kUnimplemented,
                  std::string("the adapter or its driver can't register memory of a device") + kStageCure);
  }
  return verbs_error(error_number, "registering " + std::to_string(length_bytes) + " bytes of a device's memory");
}

// Brings in the pages at once. Linux doesn't look at memory when it is registered on demand, and a page that can't be
// had later ends the connection: so this is also the check that there is none. A window's pages must be ones that can
// be written (ib_access_writable() in Linux), and only PREFETCH_WRITE asks for that.
bool bring_in(ibv_pd* domain, const ibv_mr& registration, const std::byte* address, size_t length_bytes, int access) {
  constexpr size_t kPieceBytes = size_t{1} << 30;  // a length has 32 bits
  const bool writable = (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND)) != 0;
  const auto advice = writable ? IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE : IBV_ADVISE_MR_ADVICE_PREFETCH;
  for (size_t at = 0; at < length_bytes; at += kPieceBytes) {
    ibv_sge piece{.addr = reinterpret_cast<uint64_t>(address) + at,
                  .length = static_cast<uint32_t>(std::min(kPieceBytes, length_bytes - at)),
                  .lkey = registration.lkey};
    if (ibv_advise_mr(domain, advice, IBV_ADVISE_MR_FLAG_FLUSH, &piece, 1) != 0) return false;
  }
  return true;
}

// An optional right: libraries, kernels and adapters that don't know it are to ignore it. One that doesn't is asked
// again.
ibv_mr* register_pages(ibv_pd* domain, const std::byte* address, size_t length_bytes, int access) {
  static const bool relaxed = relaxed_ordering_wanted(std::getenv("RRPC_RELAXED_ORDERING"));
  void* const begin = const_cast<std::byte*>(address);
  if (relaxed) {
    ibv_mr* registration = ibv_reg_mr(domain, begin, length_bytes, access | IBV_ACCESS_RELAXED_ORDERING);
    if (registration != nullptr || (errno != EINVAL && errno != EOPNOTSUPP)) return registration;
  }
  return ibv_reg_mr(domain, begin, length_bytes, access);
}

ibv_mr* register_host(ibv_pd* domain, const std::byte* address, size_t length_bytes, int access) {
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) {
    ibv_mr* registration = register_pages(domain, address, length_bytes, access);
    if (registration != nullptr && bring_in(domain, *registration, address, length_bytes, access)) return registration;
    if (registration != nullptr) ibv_dereg_mr(registration);
  }
  return register_pages(domain, address, length_bytes, access & ~IBV_ACCESS_ON_DEMAND);
}

}  // namespace

bool offers_on_demand(ibv_context* context) {
  constexpr uint32_t kNeeded =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  ibv_device_attr_ex attributes{};
  if (ibv_query_device_ex(context, nullptr, &attributes) != 0) return false;
  return (attributes.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0 &&
         (attributes.odp_caps.per_transport_caps.rc_odp_caps & kNeeded) == kNeeded;
}

bool on_demand_wanted(const char* value) { return value != nullptr && std::string_view(value) == "1"; }

bool relaxed_ordering_wanted(const char* value) { return value == nullptr || std::string_view(value) != "0"; }

Result<ibv_mr*> register_with_adapter(ibv_pd* domain, const MemoryRange& range, const std::byte* address,
                                      size_t length_bytes, int access) {
  if (range.dmabuf_fd >= 0)
    return register_dmabuf(domain, range, address, length_bytes, access & ~IBV_ACCESS_ON_DEMAND);
  errno = 0;
  ibv_mr* registration = register_host(domain, address, length_bytes, access);
  if (registration != nullptr) return registration;
  const int error_number = errno;
  if (error_number == EFAULT) {
    return failed_precondition(
        "this memory can't be registered with an adapter (it is mapped read-only, or not at all)");
  }
  return verbs_error(error_number, "registering " + std::to_string(length_bytes) + " bytes with the adapter");
}

}  // namespace rrpc::provider::verbs
