#include "provider/verbs/registering.h"

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

// An optional right: libraries, kernels and adapters that don't know it are to ignore it. One that doesn't is asked
// again.
ibv_mr* register_host(ibv_pd* domain, const std::byte* address, size_t length_bytes, int access) {
  static const bool relaxed = relaxed_ordering_wanted(std::getenv("RRPC_RELAXED_ORDERING"));
  void* const begin = const_cast<std::byte*>(address);
  if (relaxed) {
    ibv_mr* registration = ibv_reg_mr(domain, begin, length_bytes, access | IBV_ACCESS_RELAXED_ORDERING);
    if (registration != nullptr || (errno != EINVAL && errno != EOPNOTSUPP)) return registration;
  }
  return ibv_reg_mr(domain, begin, length_bytes, access);
}

}  // namespace

bool relaxed_ordering_wanted(const char* value) { return value == nullptr || std::string_view(value) != "0"; }

Result<ibv_mr*> register_with_adapter(ibv_pd* domain, const MemoryRange& range, const std::byte* address,
                                      size_t length_bytes, int access) {
  if (range.dmabuf_fd >= 0) return register_dmabuf(domain, range, address, length_bytes, access);
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
