#include "rpc/messages.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/limits.h"
#include "base/text.h"

namespace rrpc::rpc {

using endpoint::Descriptor;

namespace {

constexpr uint32_t kHelloFieldsMax = 64;

// Reads as many tags as the range has pieces.
endpoint::SealRef read_seal(ByteReader& reader, uint64_t length_bytes, uint32_t pieces_max) {
  auto seal = std::make_shared<endpoint::Seal>();
  seal->number = reader.read<uint64_t>();
  seal->pieces_max = pieces_max;
  const size_t count = endpoint::seal_piece_count(length_bytes, pieces_max);
  const Bytes tags = reader.take(count * provider::kTagBytes);
  seal->tags.resize(tags.size() / provider::kTagBytes);
  if (!tags.empty()) std::memcpy(seal->tags.data(), tags.data(), tags.size());
  return seal;
}

void write_seal(ByteWriter& writer, const endpoint::Seal& seal) {
  writer.write(seal.number);
  writer.write_bytes(std::as_bytes(std::span(seal.tags)));
}

}  // namespace

namespace parsing {

Status read_some_descriptors(ByteReader& reader, size_t descriptor_count, bool sealed, std::vector<Descriptor>& out) {
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < descriptor_count && !reader.failed(); ++i) {
    Descriptor descriptor;
    descriptor.address = reader.read<uint64_t>();
    const auto length = reader.read<uint64_t>();
    descriptor.length_bytes = length & ~(kContinuesBit | kLentBit | kRailsBit);
    descriptor.continues = (length & kContinuesBit) != 0;
    descriptor.lent = (length & kLentBit) != 0;
    descriptor.rkey = reader.read<uint32_t>();
    total_bytes += std::min(descriptor.length_bytes, kMessageBytesMax + 1);
    if (total_bytes > kMessageBytesMax)
      return Status::protocol_error("a bad descriptor: " + std::to_string(descriptor.length_bytes) + " bytes");
    if (descriptor.address + descriptor.length_bytes < descriptor.address)
      return Status::protocol_error("a bad descriptor: its range wraps around");
    if (sealed && (length & kRailsBit) != 0)
      return Status::protocol_error("a bad descriptor: rails of a protected connection");
    if (sealed) descriptor.seal = read_seal(reader, descriptor.length_bytes, endpoint::kSealPiecesMax);
    if ((length & kRailsBit) != 0) descriptor.rail_keys = reader.read<endpoint::RailKeys>();
    out.push_back(std::move(descriptor));
  }
  if (!out.empty() && out.back().continues && !reader.failed())
    return Status::protocol_error("a bad descriptor: the pieces of its buffer don't end");
  return {};
}

Status read_out(ByteReader& reader, bool sealed, ParsedRequest& request) {
  if (sealed) return Status::protocol_error("a request with out= memory over a protected connection");
  std::vector<Descriptor> out;
  RRPC_RETURN_IF_ERROR(read_some_descriptors(reader, 1, false, out));
  if (!out.empty() && out.front().has_rails()) return Status::protocol_error("a bad descriptor: rails of out= memory");
  if (!out.empty()) request.out = {out.front().address, out.front().length_bytes, out.front().rkey};
  return {};
}

Status check_out_index(const ParsedReply& reply) {
  if (reply.fixed.out_index < std::ranges::count(reply.descriptors, false, &Descriptor::continues)) return {};
  return Status::protocol_error("a reply whose out index is past its buffers");
}

Status unknown(const char* what, unsigned value) {
  return Status::protocol_error(std::string("a ") + what + " " + std::to_string(value));
}

Status cut_short(const char* what) { return Status::protocol_error(std::string("a truncated ") + what + " message"); }

}  // namespace parsing

using parsing::cut_short;
using parsing::read_descriptors;

Status parse_item(Bytes body, ParsedItem& item, bool sealed) {
  ByteReader reader(body);
  item.fixed = reader.read<ItemFixed>();
  if ((item.fixed.flags & ~kItemFlags) != 0)
    return Status::protocol_error("an item with unknown flags " + std::to_string(item.fixed.flags));
  RRPC_RETURN_IF_ERROR(read_descriptors(reader, item.fixed.descriptor_count, sealed, item.descriptors));
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

Result<ParsedItemBulk> parse_item_bulk(Bytes body, bool sealed) {
  ByteReader reader(body);
  ParsedItemBulk bulk{reader.read<ItemBulk>(), nullptr};
  if (sealed && bulk.length_bytes <= kMessageBytesMax)
    bulk.seal = read_seal(reader, bulk.length_bytes, endpoint::kBodySealPiecesMax);
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
    return Status::protocol_error("a HELLO whose window is " + quoted(text) + ", not items,bytes");
  return window;
}

Result<uint32_t> parse_buffers_max(const std::string& text) {
  uint32_t count = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count == 0)
    return Status::protocol_error("a HELLO whose buffers are " + quoted(text) + ", not a number");
  return count;
}

Result<ParsedBulk> parse_bulk(Bytes body, bool sealed) {
  ByteReader reader(body);
  ParsedBulk bulk{reader.read<BulkBody>(), nullptr};
  if (sealed && bulk.length_bytes <= kMessageBytesMax)
    bulk.seal = read_seal(reader, bulk.length_bytes, endpoint::kBodySealPiecesMax);
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
  size_t length = descriptors.size() * endpoint::kDescriptorWireBytes;
  for (const Descriptor& descriptor : descriptors) {
    if (descriptor.seal) length += endpoint::seal_wire_bytes(descriptor.length_bytes, endpoint::kSealPiecesMax);
    if (descriptor.has_rails()) length += endpoint::kRailKeysWireBytes;
  }
  std::string encoded(length, '\0');
  ByteWriter writer(std::as_writable_bytes(std::span(encoded)));
  for (const Descriptor& descriptor : descriptors) {
    writer.write(descriptor.address);
    writer.write(descriptor.length_bytes | (descriptor.continues ? kContinuesBit : 0) |
                 (descriptor.lent ? kLentBit : 0) | (descriptor.has_rails() ? kRailsBit : 0));
    writer.write(descriptor.rkey);
    if (descriptor.seal) write_seal(writer, *descriptor.seal);
    if (descriptor.has_rails()) writer.write(descriptor.rail_keys);
  }
  return encoded;
}

std::string encode_bulk(Bytes fixed, const Descriptor& body) {
  std::string encoded(as_text(fixed));
  if (body.seal == nullptr) return encoded;
  encoded.resize(fixed.size() + endpoint::seal_wire_bytes(body.length_bytes, endpoint::kBodySealPiecesMax));
  ByteWriter writer(std::as_writable_bytes(std::span(encoded)).subspan(fixed.size()));
  write_seal(writer, *body.seal);
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

Status refusal_in(const HelloFields& fields) {
  const auto why = fields.find(kRefused);
  if (why == fields.end()) return {};
  uint8_t code = 0;
  if (const auto as = fields.find(kRefusedAs); as != fields.end())
    std::from_chars(as->second.data(), as->second.data() + as->second.size(), code);
  const bool known = code != 0 && code <= kStatusCodeMax;
  return {known ? static_cast<StatusCode>(code) : StatusCode::kResourceExhausted, one_line(why->second)};
}

}  // namespace rrpc::rpc
