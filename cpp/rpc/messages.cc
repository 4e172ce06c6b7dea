#include "rpc/messages.h"

#include <algorithm>
#include <charconv>

#include "base/limits.h"

namespace rrpc::rpc {

using endpoint::Descriptor;

namespace {

constexpr uint32_t kHelloFieldsMax = 64;

Status read_some_descriptors(ByteReader& reader, size_t descriptor_count, std::vector<Descriptor>& out) {
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < descriptor_count && !reader.failed(); ++i) {
    Descriptor descriptor;
    descriptor.address = reader.read<uint64_t>();
    const auto length = reader.read<uint64_t>();
    descriptor.length_bytes = length & ~kContinuesBit;
    descriptor.continues = (length & kContinuesBit) != 0;
    descriptor.rkey = reader.read<uint32_t>();
    total_bytes += std::min(descriptor.length_bytes, kMessageBytesMax + 1);
    if (total_bytes > kMessageBytesMax)
      return Status::protocol_error("a bad descriptor: " + std::to_string(descriptor.length_bytes) + " bytes");
    if (descriptor.address + descriptor.length_bytes < descriptor.address)
      return Status::protocol_error("a bad descriptor: its range wraps around");
    out.push_back(descriptor);
  }
  if (!out.empty() && out.back().continues && !reader.failed())
    return Status::protocol_error("a bad descriptor: the pieces of its buffer don't end");
  return {};
}

inline Status read_descriptors(ByteReader& reader, size_t descriptor_count, std::vector<Descriptor>& out) {
  return descriptor_count == 0 ? Status() : read_some_descriptors(reader, descriptor_count, out);
}

size_t count_buffers(std::span<const Descriptor> list) {
  return static_cast<size_t>(std::ranges::count(list, false, &Descriptor::continues));
}

[[gnu::cold]] Status unknown(const char* what, unsigned value) {
  return Status::protocol_error(std::string("a ") + what + " " + std::to_string(value));
}
[[gnu::cold]] Status cut_short(const char* what) {
  return Status::protocol_error(std::string("a truncated ") + what + " message");
}

}  // namespace

Status parse_request(Bytes body, ParsedRequest& request) {
  ByteReader reader(body);
  request.fixed = reader.read<RequestFixed>();
  if ((request.fixed.flags & ~kRequestFlags) != 0) return unknown("request with unknown flags", request.fixed.flags);
  if (request.has_out()) {
    std::vector<Descriptor> out;
    RRPC_RETURN_IF_ERROR(read_descriptors(reader, 1, out));
    if (!out.empty()) request.out = out.front();
  }
  RRPC_RETURN_IF_ERROR(read_descriptors(reader, request.fixed.descriptor_count, request.descriptors));
  request.method = as_text(reader.take(request.fixed.method_bytes));
  request.metadata = reader.take(request.fixed.metadata_bytes);
  request.payload = reader.rest();
  if (reader.failed()) return cut_short("request");
  return {};
}

Status parse_reply(Bytes body, ParsedReply& reply) {
  ByteReader reader(body);
  reply.fixed = reader.read<ReplyFixed>();
  if (reply.fixed.status > kStatusCodeMax) return unknown("reply with unknown status", reply.fixed.status);
  if ((reply.fixed.flags & ~kReplyFlags) != 0) return unknown("reply with unknown flags", reply.fixed.flags);
  RRPC_RETURN_IF_ERROR(read_descriptors(reader, reply.fixed.descriptor_count, reply.descriptors));
  if (reply.fixed.out_index != kNoOutIndex && reply.fixed.out_index >= count_buffers(reply.descriptors))
    return Status::protocol_error("a reply whose out index is past its buffers");
  reply.message = as_text(reader.take(reply.fixed.message_bytes));
  reply.metadata = reader.take(reply.fixed.metadata_bytes);
  reply.payload = reader.rest();
  if (reader.failed()) return cut_short("reply");
  return {};
}

Status parse_item(Bytes body, ParsedItem& item) {
  ByteReader reader(body);
  item.fixed = reader.read<ItemFixed>();
  if ((item.fixed.flags & ~kItemFlags) != 0)
    return Status::protocol_error("an item with unknown flags " + std::to_string(item.fixed.flags));
  RRPC_RETURN_IF_ERROR(read_descriptors(reader, item.fixed.descriptor_count, item.descriptors));
  item.payload = reader.rest();
  if (reader.failed()) return cut_short("item");
  const bool plain = !item.has(kInitialMetadata) && item.descriptors.empty();
  const uint8_t flags = item.fixed.flags;
  const bool without_item = flags == (kNoItem | kStreamEnd) || flags == (kNoItem | kAskWindow);
  if ((item.has(kSeveralItems) && !plain) ||
      ((flags & (kNoItem | kAskWindow)) != 0 && (!without_item || !plain || !item.payload.empty())))
    return Status::protocol_error("an item whose flags " + std::to_string(item.fixed.flags) +
                                  " don't go with each other or with what it has");
  return {};
}

uint64_t ParsedItem::item_bytes() const { return payload.size() + total_bytes(descriptors); }

Result<ItemBulk> parse_item_bulk(Bytes body) {
  ByteReader reader(body);
  const auto bulk = reader.read<ItemBulk>();
  if (reader.failed() || reader.remaining() != 0) return cut_short("bulk item");
  if (bulk.length_bytes == 0 || bulk.length_bytes > kMessageBytesMax || bulk.item_bytes > kMessageBytesMax ||
      bulk.address + bulk.length_bytes < bulk.address)
    return Status::protocol_error("a bad descriptor: an item's body of " + std::to_string(bulk.length_bytes) +
                                  " bytes");
  return bulk;
}

Result<std::vector<WindowEntry>> parse_windows(Bytes body) {
  if (body.empty() || body.size() % sizeof(WindowEntry) != 0) return cut_short("window");
  ByteReader reader(body);
  std::vector<WindowEntry> entries(body.size() / sizeof(WindowEntry));
  for (WindowEntry& entry : entries) entry = reader.read<WindowEntry>();
  return entries;
}

std::string encode_window(const StreamWindow& window) {
  return std::to_string(window.items) + "," + std::to_string(window.bytes);
}

Result<StreamWindow> parse_window(const std::string& text) {
  StreamWindow window;
  const char* const end = text.data() + text.size();
  const auto items = std::from_chars(text.data(), end, window.items);
  const bool comma = items.ec == std::errc() && items.ptr != end && *items.ptr == ',';
  const auto bytes = std::from_chars(comma ? items.ptr + 1 : end, end, window.bytes);
  if (!comma || bytes.ec != std::errc() || bytes.ptr != end || window.items == 0 || window.bytes == 0)
    return Status::protocol_error("a HELLO whose window is '" + text.substr(0, 40) + "', not items,bytes");
  return window;
}

Result<uint32_t> parse_buffers_max(const std::string& text) {
  uint32_t count = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count == 0)
    return Status::protocol_error("a HELLO whose buffers are '" + text.substr(0, 40) + "', not a number");
  return count;
}

Result<BulkBody> parse_bulk(Bytes body) {
  ByteReader reader(body);
  const auto bulk = reader.read<BulkBody>();
  if (reader.failed() || reader.remaining() != 0) return cut_short("bulk");
  if (bulk.length_bytes == 0 || bulk.length_bytes > kMessageBytesMax || bulk.address + bulk.length_bytes < bulk.address)
    return Status::protocol_error("a bad descriptor: a message body of " + std::to_string(bulk.length_bytes) +
                                  " bytes");
  return bulk;
}

Result<std::vector<uint64_t>> parse_call_ids(Bytes body) {
  if (body.empty() || body.size() % sizeof(uint64_t) != 0) return cut_short("call id list");
  ByteReader reader(body);
  std::vector<uint64_t> ids(body.size() / sizeof(uint64_t));
  for (uint64_t& id : ids) id = reader.read<uint64_t>();
  return ids;
}

std::span<const Descriptor> buffer_at(std::span<const Descriptor> list, size_t index) {
  for (; index > 0; --index) list = list.subspan(first_buffer(list).size());
  return first_buffer(list);
}

size_t total_bytes(std::span<const Descriptor> pieces) {
  size_t total = 0;
  for (const Descriptor& piece : pieces) total += piece.length_bytes;
  return total;
}

std::string encode_descriptors(std::span<const Descriptor> descriptors) {
  std::string encoded(descriptors.size() * endpoint::kDescriptorWireBytes, '\0');
  ByteWriter writer(std::as_writable_bytes(std::span(encoded)));
  for (const Descriptor& descriptor : descriptors) {
    writer.write(descriptor.address);
    writer.write(descriptor.length_bytes | (descriptor.continues ? kContinuesBit : 0));
    writer.write(descriptor.rkey);
  }
  return encoded;
}

std::string encode_hello(const HelloFields& fields) {
  std::string encoded;
  const auto append = [&encoded](std::string_view text) {
    const auto length = static_cast<uint16_t>(text.size());
    encoded.append(reinterpret_cast<const char*>(&length), sizeof(length));
    encoded.append(text.substr(0, length));
  };
  for (const auto& [name, value] : fields) {
    append(name);
    append(value);
  }
  return encoded;
}

Result<HelloFields> parse_hello(Bytes body) {
  ByteReader reader(body);
  HelloFields fields;
  while (reader.remaining() > 0) {
    const std::string_view name = as_text(reader.take(reader.read<uint16_t>()));
    const std::string_view value = as_text(reader.take(reader.read<uint16_t>()));
    if (reader.failed()) return cut_short("HELLO");
    if (fields.size() >= kHelloFieldsMax) return Status::protocol_error("a HELLO with too many fields");
    fields.emplace(name, value);
  }
  return fields;
}

}  // namespace rrpc::rpc
