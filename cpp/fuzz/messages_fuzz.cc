// Every parser of messages, on the bytes of a stranger. The first byte picks the parser.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "rpc/messages.h"

namespace rrpc::rpc {
namespace {

// What was parsed lies within the body, and descriptors say no more than they may: reading each byte lets
// AddressSanitizer tell.
void read(Bytes part) {
  for (const std::byte byte : part) {
    volatile auto seen = byte;
    (void)seen;
  }
}

void parse(uint8_t kind, Bytes body) {
  switch (kind % 8) {
    case 0: {
      ParsedRequest request;
      if (!parse_request(body, request).ok()) return;
      read(as_bytes(request.method));
      read(request.metadata);
      read(request.payload);
      return (void)total_bytes(request.descriptors);
    }
    case 1: {
      ParsedReply reply;
      if (!parse_reply(body, reply).ok()) return;
      read(as_bytes(reply.message));
      read(reply.metadata);
      read(reply.payload);
      return (void)total_bytes(reply.descriptors);
    }
    case 2: {
      ParsedItem item;
      if (!parse_item(body, item).ok()) return;
      read(item.payload);
      return (void)item.item_bytes();
    }
    case 3:
      return (void)parse_item_bulk(body);
    case 4:
      return (void)parse_windows(body);
    case 5:
      return (void)parse_bulk(body);
    case 6:
      return (void)parse_call_ids(body);
    default: {
      const auto fields = parse_hello(body);
      if (!fields.ok()) return;
      for (const auto& [name, value] : *fields) {
        (void)parse_window(value);
        (void)parse_buffers_max(value);
      }
      // What was read is written and read the same again.
      const auto again = parse_hello(as_bytes(encode_hello(*fields)));
      if (again.ok() && *again != *fields) __builtin_trap();
    }
  }
}

}  // namespace
}  // namespace rrpc::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  if (length_bytes == 0) return 0;
  // In memory of its own, so that a byte past the end is seen.
  const std::string body(reinterpret_cast<const char*>(data) + 1, length_bytes - 1);
  rrpc::rpc::parse(data[0], rrpc::as_bytes(body));
  return 0;
}
