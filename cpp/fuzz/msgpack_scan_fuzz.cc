// The look over a payload before anything is built of it, on the bytes of a stranger.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/msgpack_scan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  // In memory of its own, so that a byte past the end is seen.
  const std::string value(reinterpret_cast<const char*>(data), length_bytes);
  const auto facts = rrpc::scan_msgpack(rrpc::as_bytes(value));
  if (facts.ok() && facts->objects > rrpc::objects_max(length_bytes)) __builtin_trap();
  return 0;
}
