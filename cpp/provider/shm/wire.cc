#include "provider/shm/wire.h"

#include <algorithm>

#include "base/text.h"
#include "provider/shm/control_segment.h"

namespace rrpc::provider::shm {

namespace {

Status malformed(std::string what) { return Status::protocol_error("malformed set-up over shm: " + std::move(what)); }

// A whole payload is one value: a shorter or longer one is malformed.
template <typename T>
Result<T> decode_exactly(Bytes payload, const char* name) {
  ByteReader reader(payload);
  const T value = reader.read<T>();
  if (reader.failed() || reader.remaining() != 0)
    return malformed(std::string(name) + " of " + std::to_string(payload.size()) + " bytes");
  return value;
}

template <typename T>
Frame encode_value(MessageType type, const T& value, bool with_preamble = false) {
  return Frame(type, std::as_bytes(std::span(&value, 1)), with_preamble);
}

Status not_rrpc(Bytes received) {
  constexpr std::string_view kHttp[] = {"GET ", "POST", "HEAD", "PUT ", "OPTI", "DELE",
                                        "CONN", "PATC", "TRAC", "PRI ", "HTTP"};
  const std::string_view start = as_text(received.first(4));
  if (std::ranges::find(kHttp, start) != std::end(kHttp))
    return Status::protocol_error("the peer speaks HTTP, not rrpc");
  if (start[0] == 0x16 && start[1] == 0x03) return Status::protocol_error("the peer speaks TLS, not rrpc");
  return Status::protocol_error("the peer does not speak rrpc over shm: wrong magic");
}

}  // namespace

static_assert(std::is_trivially_copyable_v<SetupNotice> && sizeof(SetupNotice) == 112);
static_assert(sizeof(SlabNotice) == 24);

bool carries_fd(MessageType type) {
  return type == MessageType::kSetup || type == MessageType::kSlab || type == MessageType::kReadyBits;
}

Frame::Frame(MessageType type, Bytes payload, bool with_preamble) {
  ByteWriter writer(buffer_);
  if (with_preamble) {
    writer.write_bytes(as_bytes(kMagic));
    writer.write(kVersion);
    writer.write(uint32_t{0});
  }
  writer.write(static_cast<uint8_t>(type));
  writer.write(uint8_t{0});
  writer.write(static_cast<uint16_t>(payload.size()));
  writer.write_bytes(payload);
  RRPC_CHECK(!writer.failed(), "a set-up message is longer than its bound");
  used_ = writer.used();
}

Frame encode_setup(const SetupNotice& setup) { return encode_value(MessageType::kSetup, setup, true); }
Frame encode_ready(bool can) { return encode_value(MessageType::kReady, static_cast<uint32_t>(can)); }
Frame encode_slab(const SlabNotice& notice) { return encode_value(MessageType::kSlab, notice); }
Frame encode_drop_slab(uint32_t id) { return encode_value(MessageType::kDropSlab, id); }

Frame encode_ready_bits(uint32_t bit) { return encode_value(MessageType::kReadyBits, bit); }

Frame encode_goodbye(const Status& why, bool with_preamble) {
  std::array<std::byte, kPayloadBytesMax> payload;
  ByteWriter writer(payload);
  writer.write(static_cast<uint8_t>(why.code()));
  writer.write_bytes(as_bytes(cut_text(why.message(), kPayloadBytesMax - 1)));
  return Frame(MessageType::kGoodbye, writer.written(), with_preamble);
}

Result<bool> check_preamble(Bytes received) {
  const size_t comparable = std::min(received.size(), kMagic.size());
  if (as_text(received.first(comparable)) != kMagic.substr(0, comparable)) {
    if (received.size() < 4) return false;
    return not_rrpc(received);
  }
  if (received.size() < kPreambleBytes) return false;
  ByteReader reader(received.subspan(kMagic.size()));
  const auto version = reader.read<uint32_t>();
  if (version != kVersion)
    return Status::protocol_error("the peer speaks version " + std::to_string(version) +
                                  " of rrpc over shm, this is version " + std::to_string(kVersion));
  return true;
}

Result<std::optional<Received>> parse_message(Bytes received) {
  ByteReader reader(received);
  const auto type = reader.read<uint8_t>();
  const auto zero = reader.read<uint8_t>();
  const auto payload_bytes = reader.read<uint16_t>();
  if (reader.failed()) return std::optional<Received>();
  if (type < static_cast<uint8_t>(MessageType::kSetup) || type > static_cast<uint8_t>(MessageType::kReadyBits) ||
      zero != 0)
    return Status::protocol_error("unknown message type " + std::to_string(type) + " on the shm socket");
  if (payload_bytes > kPayloadBytesMax)
    return Status::protocol_error("a message of " + std::to_string(payload_bytes) +
                                  " bytes on the shm socket, at most " + std::to_string(kPayloadBytesMax) +
                                  " are allowed");
  if (reader.remaining() < payload_bytes) return std::optional<Received>();
  return std::optional(Received{static_cast<MessageType>(type), reader.take(payload_bytes)});
}

Result<SetupNotice> decode_setup(Bytes payload) {
  RRPC_ASSIGN_OR_RETURN(SetupNotice setup, decode_exactly<SetupNotice>(payload, "SETUP"));
  if (!std::has_single_bit(setup.ring_entries) || setup.ring_entries > kReceiveDepthMax)
    return malformed("a receive ring of " + std::to_string(setup.ring_entries) + " entries");
  if (setup.exposure_count != kExposureCount)
    return malformed("an exposure table of " + std::to_string(setup.exposure_count) + " entries");
  if (setup.segment_bytes != ControlSegment::segment_bytes(setup.ring_entries))
    return malformed("a control segment of " + std::to_string(setup.segment_bytes) + " bytes for " +
                     std::to_string(setup.ring_entries) + " ring entries");
  if (setup.private_bytes > kPrivateDataBytesMax)
    return malformed(std::to_string(setup.private_bytes) + " bytes of private data");
  return setup;
}

Result<bool> decode_ready(Bytes payload) {
  RRPC_ASSIGN_OR_RETURN(uint32_t can, decode_exactly<uint32_t>(payload, "READY"));
  if (can > 1) return malformed("READY of value " + std::to_string(can));
  return can == 1;
}

Result<SlabNotice> decode_slab(Bytes payload) {
  RRPC_ASSIGN_OR_RETURN(SlabNotice notice, decode_exactly<SlabNotice>(payload, "SLAB"));
  if (notice.writable > 1 || notice.length_bytes == 0 || notice.address + notice.length_bytes < notice.address)
    return malformed("SLAB of an impossible range");
  return notice;
}

Result<uint32_t> decode_drop_slab(Bytes payload) { return decode_exactly<uint32_t>(payload, "DROP_SLAB"); }

Result<uint32_t> decode_ready_bits(Bytes payload) {
  RRPC_ASSIGN_OR_RETURN(uint32_t bit, decode_exactly<uint32_t>(payload, "READY_BITS"));
  if (bit >= ReadyPage::kBits) return malformed("READY_BITS of bit " + std::to_string(bit));
  return bit;
}

Result<Goodbye> decode_goodbye(Bytes payload) {
  if (payload.empty()) return malformed("GOODBYE of 0 bytes");
  Goodbye goodbye;
  const auto code = static_cast<uint8_t>(payload[0]);
  if (code != 0 && code <= kStatusCodeMax) goodbye.code = static_cast<StatusCode>(code);
  goodbye.reason = one_line(as_text(payload.subspan(1)));
  return goodbye;
}

}  // namespace rrpc::provider::shm
