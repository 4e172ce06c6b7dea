#include "rpc/options.h"

namespace rrpc::rpc::excess {

Status message(uint64_t length_bytes, const SessionOptions& options, const char* whose) {
  return resource_exhausted(std::string("message_bytes_max: ") + whose + " has " + std::to_string(length_bytes) +
                            " bytes without its arrays, the limit is " + std::to_string(options.message_bytes_max) +
                            "; pass what is large as arrays, or raise message_bytes_max at both ends");
}

// No pause would raise the limit, so the error doesn't ask for one.
Status buffers(size_t count, uint32_t most, const char* whose) {
  return invalid_argument(std::string("buffers_max: ") + whose + " has " + std::to_string(count) +
                          " large buffers, both ends allow " + std::to_string(most) +
                          "; join small arrays, or raise buffers_max at both ends (at most " +
                          std::to_string(kDescriptorsPerMessageMax) + ")");
}

Status descriptors(size_t count, const SessionOptions& options) {
  return Status::protocol_error("a message with " + std::to_string(count) + " descriptors, the limit is " +
                                std::to_string(options.buffers_max));
}

Status metadata(size_t length_bytes, const SessionOptions& options, const char* whose) {
  return resource_exhausted(std::string("metadata_bytes_max: ") + whose + " has " + std::to_string(length_bytes) +
                            " bytes of metadata, the limit is " + std::to_string(options.metadata_bytes_max));
}

}  // namespace rrpc::rpc::excess
