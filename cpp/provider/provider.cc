#include "provider/provider.h"

namespace rrpc::provider {

std::string_view wc_status_name(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess:
      return "success";
    case WcStatus::kLocalLength:
      return "local length error";
    case WcStatus::kLocalProtection:
      return "local protection error";
    case WcStatus::kFlushed:
      return "flushed";
    case WcStatus::kRemoteAccess:
      return "remote access error";
    case WcStatus::kRemoteOperation:
      return "remote operation error";
    case WcStatus::kRetryExceeded:
      return "retry count exceeded";
    case WcStatus::kRnrRetryExceeded:
      return "receiver not ready";
    case WcStatus::kFatal:
      return "fatal error";
  }
  return "unknown";
}

std::string_view exposure_kind_name(ExposureKind kind) {
  switch (kind) {
    case ExposureKind::kChecked:
      return "checked";
    case ExposureKind::kWindow:
      return "memory window";
    case ExposureKind::kRegistration:
      return "registration per call";
  }
  return "unknown";
}

const PeerIdentity& QueuePair::peer_identity() const {
  static const PeerIdentity nobody;
  return nobody;
}

// Out of line: callers then make one indirect call, without asking first whether it is this one.
bool QueuePair::post_again(uint64_t) { return false; }
std::byte* QueuePair::reserve_message(uint32_t) { return nullptr; }
bool QueuePair::commit_message(bool, uint64_t) { return false; }

Status check_host_memory(const MemoryRange& range) {
  if (range.dmabuf_fd < 0) return {};
  return {StatusCode::kUnimplemented, std::string("a device's memory moves over RDMA only") + kStageCure};
}

}  // namespace rrpc::provider
