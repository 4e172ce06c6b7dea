// What two tcp queue pairs say to each other. Every frame is a header of 24 little-endian bytes
//
//   magic u8 | type u8 | detail u16 | rkey u32 | address u64 | length u32 | tag u32
//
// and, for some types, `length` bytes of payload. The client speaks first with SETUP, the server answers with its own.
//
//   SETUP          detail: protocol version; payload: "rrpc", READs accepted at once u32, private data
//   SEND           payload: the message                  READ_REQUEST   rkey, address, length: what is wanted
//   READ_RESPONSE  payload: the bytes                    WRITE          rkey, address; payload: the bytes
//   WRITE_ACK      tag: how many WRITEs have landed      NAK            detail: a WcStatus; payload: why
//   GOODBYE        payload: why
//   PUSH           rkey, address; payload: exposed bytes that the receiver of the SEND before it is going to READ
//
// The tag of a request comes back in its READ_RESPONSE or NAK. The tag of a SETUP has a bit for each thing that its
// sender can take (kTakesPushes). A SEND's detail says how many PUSHes follow it at once.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "provider/provider.h"

namespace rrpc::provider::tcp {

constexpr uint8_t kFrameMagic = 0xA7;
constexpr uint16_t kProtocolVersion = 1;
constexpr uint8_t kTlsHandshake = 0x16;  // the first byte of what a TLS client says
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kMessageBytesMax = 1u << 30;
constexpr uint32_t kReasonBytesMax = 200;
constexpr uint32_t kSetupFixedBytes = 8;
constexpr uint32_t kControlBodyBytesMax = 256;
constexpr uint32_t kTakesPushes = 1;
constexpr uint32_t kPushedBytesMax = 1 << 20;  // behind one SEND: costs less to send than to ask for

enum class FrameType : uint8_t {
  kSetup = 1,
  kSend,
  kReadRequest,
  kReadResponse,
  kWrite,
  kWriteAck,
  kNak,
  kGoodbye,
  kPush,
};
std::string_view frame_type_name(FrameType type);

struct FrameHeader {
  FrameType type = FrameType::kSetup;
  uint16_t detail = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
  uint32_t length_bytes = 0;
  uint32_t tag = 0;

  uint32_t payload_bytes() const {
    return type == FrameType::kReadRequest || type == FrameType::kWriteAck ? 0 : length_bytes;
  }
};

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
HeaderBytes encode_header(const FrameHeader& header);
// `bytes` are at least kFrameHeaderBytes. Checks magic, type and length.
Result<FrameHeader> decode_header(Bytes bytes);
// An error as soon as the first bytes (one or more) can't begin a frame; names well-known strangers.
Status check_magic(Bytes bytes, bool first_frame);

struct Setup {
  uint32_t read_depth = 0;
  Bytes private_data;
};
std::vector<std::byte> encode_setup_body(const Setup& setup);
Result<Setup> decode_setup_body(Bytes body);

}  // namespace rrpc::provider::tcp
