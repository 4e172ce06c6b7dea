#include "provider/tcp/frame.h"

#include <algorithm>
#include <cstdio>

namespace rrpc::provider::tcp {

static constexpr std::string_view kSetupMagic = "rrpc";

std::string_view frame_type_name(FrameType type) {
  static constexpr std::string_view kNames[] = {"SETUP",     "SEND", "READ_REQUEST", "READ_RESPONSE", "WRITE",
                                                "WRITE_ACK", "NAK",  "GOODBYE",      "PUSH"};
  const size_t index = static_cast<size_t>(type) - 1;
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

HeaderBytes encode_header(const FrameHeader& header) {
  HeaderBytes bytes{};
  ByteWriter writer(bytes);
  writer.write(kFrameMagic);
  writer.write(header.type);
  writer.write(header.detail);
  writer.write(header.rkey);
  writer.write(header.address);
  writer.write(header.length_bytes);
  writer.write(header.tag);
  return bytes;
}

static uint32_t length_bytes_max(FrameType type) {
  switch (type) {
    case FrameType::kSetup:
      return kSetupFixedBytes + kPrivateDataBytesMax;
    case FrameType::kNak:
    case FrameType::kGoodbye:
      return kReasonBytesMax;
    case FrameType::kWriteAck:
      return 0;
    case FrameType::kPush:
      return kPushedBytesMax;
    default:
      return kMessageBytesMax;
  }
}

static Status too_long(const FrameHeader& header) {
  return Status::protocol_error("a " + std::string(frame_type_name(header.type)) + " frame of " +
                                std::to_string(header.length_bytes) + " bytes is over the limit of " +
                                std::to_string(length_bytes_max(header.type)));
}

Result<FrameHeader> decode_header(Bytes bytes) {
  ByteReader reader(bytes);
  FrameHeader header;
  reader.read<uint8_t>();
  header.type = reader.read<FrameType>();
  header.detail = reader.read<uint16_t>();
  header.rkey = reader.read<uint32_t>();
  header.address = reader.read<uint64_t>();
  header.length_bytes = reader.read<uint32_t>();
  header.tag = reader.read<uint32_t>();
  if (header.type < FrameType::kSetup || header.type > FrameType::kPush) {
    return Status::protocol_error("unknown frame type " + std::to_string(static_cast<int>(header.type)));
  }
  // Another version may have another SETUP: the caller looks at its version first.
  const bool other_version = header.type == FrameType::kSetup && header.detail != kProtocolVersion;
  if (!other_version && header.length_bytes > length_bytes_max(header.type)) return too_long(header);
  return header;
}

static constexpr char kTls[] = "TLS";

static const char* known_stranger(std::string_view text) {
  for (std::string_view verb : {"GET ", "POST", "HTTP", "HEAD", "PUT ", "OPTI", "DELE", "PATC", "CONN", "PRI "}) {
    if (text.starts_with(verb)) return "HTTP";
  }
  if (text.starts_with("SSH-")) return "SSH";
  if (text.starts_with("\x16\x03") || text.starts_with("\x15\x03")) return kTls;
  return nullptr;
}

Status check_magic(Bytes bytes, bool first_frame) {
  if (static_cast<uint8_t>(bytes[0]) == kFrameMagic) return {};
  if (first_frame) {
    if (bytes.size() < 4) return {};  // wait for enough to name the stranger
    if (const char* name = known_stranger(as_text(bytes))) {
      const bool tls = std::string_view(name) == kTls;
      return Status::protocol_error(std::string("the peer speaks ") + name + ", not rrpc" +
                                    (tls ? " without it; rrpcs://, tcps:// or tls= turn TLS on" : ""));
    }
  }
  char text[120];
  std::snprintf(text, sizeof(text), "bad frame magic 0x%02x (expected 0x%02x)%s", static_cast<unsigned>(bytes[0]),
                kFrameMagic, first_frame ? ": the peer doesn't speak rrpc" : "");
  return Status::protocol_error(text);
}

std::vector<std::byte> encode_setup_body(const Setup& setup) {
  std::vector<std::byte> body(kSetupFixedBytes + setup.private_data.size());
  ByteWriter writer(body);
  writer.write_bytes(as_bytes(kSetupMagic));
  writer.write(setup.read_depth);
  writer.write_bytes(setup.private_data);
  return body;
}

Result<Setup> decode_setup_body(Bytes body) {
  ByteReader reader(body);
  const Bytes magic = reader.take(kSetupMagic.size());
  Setup setup;
  setup.read_depth = reader.read<uint32_t>();
  if (reader.failed()) return Status::protocol_error("a SETUP frame of only " + std::to_string(body.size()) + " bytes");
  if (as_text(magic) != kSetupMagic) return Status::protocol_error("bad magic in the SETUP frame");
  setup.private_data = reader.rest();
  return setup;
}

}  // namespace rrpc::provider::tcp
