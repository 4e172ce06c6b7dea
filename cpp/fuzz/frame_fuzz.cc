// The frames of tcp://, on the bytes of a stranger.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "provider/tcp/frame.h"

namespace rrpc::provider::tcp {
namespace {

void parse(Bytes bytes) {
  if (!bytes.empty()) {
    (void)check_magic(bytes, true);
    (void)check_magic(bytes, false);
  }
  (void)decode_setup_body(bytes);
  if (bytes.size() < kFrameHeaderBytes) return;
  const auto header = decode_header(bytes);
  if (!header.ok()) return;
  // What was read is written and read the same again.
  const HeaderBytes written = encode_header(*header);
  const auto again = decode_header(written);
  if (!again.ok() || again->type != header->type || again->length_bytes != header->length_bytes ||
      again->address != header->address || again->rkey != header->rkey)
    __builtin_trap();
}

}  // namespace
}  // namespace rrpc::provider::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  // In memory of its own, so that a byte past the end is seen.
  const std::string bytes(reinterpret_cast<const char*>(data), length_bytes);
  rrpc::provider::tcp::parse(rrpc::as_bytes(bytes));
  return 0;
}
