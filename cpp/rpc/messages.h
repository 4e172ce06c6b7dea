// The bodies of messages: fixed little-endian parts, then variable ones. docs/protocol.md has the tables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "endpoint/exposure.h"
#include "provider/provider.h"

namespace rrpc::rpc {

enum MessageType : uint8_t {
  // data
  kHello = 1,
  kRequest = 2,
  kRequestBulk = 3,  // the request's body is to be fetched
  kReply = 4,
  kReplyBulk = 5,
  kItem = 6,
  kItemBulk = 7,  // the body of an item is to be fetched
  // control
  kDone = 64,       // call ids whose results were fetched
  kCancel = 65,     // call ids given up by the client
  kCancelAck = 66,  // call ids of which the server holds and reads nothing any more
  kPing = 67,
  kPong = 68,
  kGoAway = 69,     // no new calls, please; a reason in text
  kWindow = 70,     // how far the items of calls were fetched and taken
  kGoAwayAck = 71,  // no request follows
};

enum RequestFlag : uint8_t {
  kOutFirst = 1,       // a descriptor of the caller's out= memory comes first
  kClientStreams = 2,  // items follow from the calling end
  kServerStreams = 4,  // items come before the reply
};
constexpr uint8_t kRequestFlags = kOutFirst | kClientStreams | kServerStreams;

struct RequestFixed {
  uint64_t call_id = 0;
  int64_t timeout_ns = -1;  // relative, since clocks differ; -1: none
  uint16_t method_bytes = 0;
  uint16_t descriptor_count = 0;
  uint8_t flags = 0;
  uint8_t reserved = 0;
  uint16_t metadata_bytes = 0;

  // A unary call without arguments that are to be fetched.
  bool is_bare() const { return flags == 0 && descriptor_count == 0; }
};
static_assert(sizeof(RequestFixed) == 24);

enum ReplyFlag : uint8_t {
  kOutWritten = 1,   // buffer `out_index` was written into the caller's memory already
  kNotExecuted = 2,  // no handler has seen the call
};
constexpr uint8_t kReplyFlags = kOutWritten | kNotExecuted;

constexpr uint16_t kNoOutIndex = 0xffff;

struct ReplyFixed {
  uint64_t call_id = 0;
  uint8_t status = 0;
  uint8_t flags = 0;
  uint16_t descriptor_count = 0;
  uint16_t out_index = kNoOutIndex;
  uint16_t metadata_bytes = 0;
  uint32_t message_bytes = 0;  // of the error's text
  uint32_t reserved = 0;

  // All that follows is the payload.
  bool is_bare_success() const {
    return status == 0 && flags == 0 && descriptor_count == 0 && out_index == kNoOutIndex && metadata_bytes == 0 &&
           message_bytes == 0;
  }
};
static_assert(sizeof(ReplyFixed) == 24);

// In a descriptor's length on the wire: Descriptor::continues, Descriptor::lent, Descriptor::has_rails().
constexpr uint64_t kContinuesBit = 1ULL << 63;
constexpr uint64_t kLentBit = 1ULL << 62;
constexpr uint64_t kRailsBit = 1ULL << 61;

struct BulkBody {
  uint64_t call_id = 0;
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(BulkBody) == 32);

// In the call id of an item or a window: sent by the answering end.
constexpr uint64_t kAnsweringBit = 1ULL << 63;

enum ItemFlag : uint8_t {
  kStreamEnd = 1,        // nothing comes after this
  kNoItem = 2,           // and this is no item
  kInitialMetadata = 4,  // of the answering end, as its item 0
  kSeveralItems = 8,     // small ones: u32 length and bytes of each
  kAskWindow = 16,       // with kNoItem: asks for a WINDOW once all items before it are fetched
};
constexpr uint8_t kItemFlags = kStreamEnd | kNoItem | kInitialMetadata | kSeveralItems | kAskWindow;

struct ItemFixed {
  uint64_t call_id = 0;
  uint32_t sequence = 0;  // of the first, modulo 2^32
  uint16_t descriptor_count = 0;
  uint8_t flags = 0;
  uint8_t reserved = 0;
};
static_assert(sizeof(ItemFixed) == 16);

// In an id of CANCEL: the calling end gave the call up because its deadline has passed.
constexpr uint64_t kDeadlineBit = 1ULL << 63;

struct ItemBulk {
  uint64_t call_id = 0;
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  uint32_t rkey = 0;
  uint32_t sequence = 0;
  uint64_t item_bytes = 0;  // as the window counts it
};
static_assert(sizeof(ItemBulk) == 40);

// What the sender of a WINDOW did with the items of one call: counts since the call's begin.
struct WindowEntry {
  uint64_t call_id = 0;
  uint32_t fetched = 0;  // modulo 2^32: nothing of those before is read any more
  uint32_t taken = 0;    // modulo 2^32
  uint64_t taken_bytes = 0;
};
static_assert(sizeof(WindowEntry) == 24);

// How far a sender may be ahead of what was taken.
struct StreamWindow {
  uint32_t items = 0;
  uint64_t bytes = 0;
  // An item of any size goes when no more than a quarter of the bytes are out; the receiver says so in time.
  bool has_room(uint32_t items_out, uint64_t bytes_out, uint64_t item_bytes) const {
    return items_out < items && (bytes_out <= bytes / 4 || bytes_out + item_bytes <= bytes);
  }
  bool worth_telling(uint32_t items_taken, uint64_t bytes_taken) const {
    return items_taken >= std::max(items / 4, 1u) || bytes_taken >= std::max<uint64_t>(bytes / 4, 1);
  }
};

// What every request has, as views of its body.
struct RequestBody {
  std::string_view method;
  Bytes metadata;
  Bytes payload;

  // `rest`: of the body, behind its descriptors. False: it is cut short.
  bool split(const RequestFixed& fixed, Bytes rest) {
    const size_t before_payload = size_t{fixed.method_bytes} + fixed.metadata_bytes;
    if (before_payload > rest.size()) return false;
    method = as_text(rest.first(fixed.method_bytes));
    metadata = rest.subspan(fixed.method_bytes, fixed.metadata_bytes);
    payload = rest.subspan(before_payload);
    return true;
  }
};

struct ParsedRequest : RequestBody {
  ParsedRequest() {}  // NOLINT(modernize-use-equals-default): which has GCC clear the whole block first
  RequestFixed fixed;
  std::optional<provider::RemoteRange> out;
  std::vector<endpoint::Descriptor> descriptors;
};

struct ParsedReply {
  ParsedReply() {}  // NOLINT(modernize-use-equals-default): see above
  ReplyFixed fixed;
  std::vector<endpoint::Descriptor> descriptors;
  std::string_view message;
  Bytes metadata;
  Bytes payload;  // of an error: its details

  bool out_written() const { return (fixed.flags & kOutWritten) != 0; }
};

// What the parsers below leave out of line, to stay small.
namespace parsing {
Status read_some_descriptors(ByteReader& reader, size_t descriptor_count, bool sealed,
                             std::vector<endpoint::Descriptor>& out);
Status read_out(ByteReader& reader, bool sealed, ParsedRequest& request);
Status check_out_index(const ParsedReply& reply);
[[gnu::cold]] Status unknown(const char* what, unsigned value);
[[gnu::cold]] Status cut_short(const char* what);

inline Status read_descriptors(ByteReader& reader, size_t descriptor_count, bool sealed,
                               std::vector<endpoint::Descriptor>& out) {
  return descriptor_count == 0 ? Status() : read_some_descriptors(reader, descriptor_count, sealed, out);
}
}  // namespace parsing

// Fills a default-constructed `request`. The views in it point into `body`. sealed, here and below: the connection is
// protected, so that each descriptor has a seal behind it.
inline Status parse_request(Bytes body, ParsedRequest& request, bool sealed = false) {
  ByteReader reader(body);
  request.fixed = reader.read<RequestFixed>();
  const RequestFixed& fixed = request.fixed;
  if ((fixed.flags & ~kRequestFlags) != 0) return parsing::unknown("request with unknown flags", fixed.flags);
  if ((fixed.flags & kOutFirst) != 0) RRPC_RETURN_IF_ERROR(parsing::read_out(reader, sealed, request));
  RRPC_RETURN_IF_ERROR(parsing::read_descriptors(reader, fixed.descriptor_count, sealed, request.descriptors));
  const bool whole = !reader.failed() && request.split(fixed, reader.rest());
  return whole ? Status() : parsing::cut_short("request");
}

inline Status parse_reply(Bytes body, ParsedReply& reply, bool sealed = false) {
  ByteReader reader(body);
  reply.fixed = reader.read<ReplyFixed>();
  const ReplyFixed& fixed = reply.fixed;
  if (fixed.status > kStatusCodeMax) return parsing::unknown("reply with unknown status", fixed.status);
  if ((fixed.flags & ~kReplyFlags) != 0) return parsing::unknown("reply with unknown flags", fixed.flags);
  RRPC_RETURN_IF_ERROR(parsing::read_descriptors(reader, fixed.descriptor_count, sealed, reply.descriptors));
  if (fixed.out_index != kNoOutIndex) RRPC_RETURN_IF_ERROR(parsing::check_out_index(reply));
  reply.message = as_text(reader.take(fixed.message_bytes));
  reply.metadata = reader.take(fixed.metadata_bytes);
  reply.payload = reader.rest();
  return reader.failed() ? parsing::cut_short("reply") : Status();
}

struct ParsedItem {
  ItemFixed fixed;
  std::vector<endpoint::Descriptor> descriptors;
  Bytes payload;

  bool has(ItemFlag flag) const { return (fixed.flags & flag) != 0; }
  uint64_t item_bytes() const;
};
Status parse_item(Bytes body, ParsedItem& item, bool sealed = false);
struct ParsedItemBulk : ItemBulk {
  endpoint::SealRef seal;
};
Result<ParsedItemBulk> parse_item_bulk(Bytes body, bool sealed = false);
Result<std::vector<WindowEntry>> parse_windows(Bytes body);

std::string encode_window(const StreamWindow& window);
Result<StreamWindow> parse_window(const std::string& text);
// Of a peer that doesn't say how many descriptors of one message it takes.
constexpr uint32_t kBuffersMaxUnsaid = 4096;
Result<uint32_t> parse_buffers_max(const std::string& text);

struct ParsedBulk : BulkBody {
  endpoint::SealRef seal;
};
Result<ParsedBulk> parse_bulk(Bytes body, bool sealed = false);
// The fixed part of a message whose body is elsewhere, and the seal of that body if there is one.
std::string encode_bulk(Bytes fixed, const endpoint::Descriptor& body);
Result<std::vector<uint64_t>> parse_call_ids(Bytes body);

// The descriptors of the first buffer of a list that isn't empty.
inline std::span<const endpoint::Descriptor> first_buffer(std::span<const endpoint::Descriptor> list) {
  size_t count = 1;
  while (count < list.size() && list[count - 1].continues) ++count;
  return list.first(count);
}
// Those of buffer `index`; the list has as many.
std::span<const endpoint::Descriptor> buffer_at(std::span<const endpoint::Descriptor> list, size_t index);
size_t total_bytes(std::span<const endpoint::Descriptor> pieces);

std::string encode_descriptors(std::span<const endpoint::Descriptor> descriptors);

// HELLO: names and values of text, so that later releases can add some.
constexpr char kRefused[] = "refused";       // in a server's HELLO: why it doesn't take this client
constexpr char kRefusedAs[] = "refused_as";  // beside it: a StatusCode as text; ResourceExhausted without
using HelloFields = std::map<std::string, std::string>;
std::string encode_hello(const HelloFields& fields);
Result<HelloFields> parse_hello(Bytes body);
// Of a server's: why it doesn't take this client; OK: it does.
Status refusal_in(const HelloFields& fields);

}  // namespace rrpc::rpc
