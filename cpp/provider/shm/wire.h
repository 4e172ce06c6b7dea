// The messages on the Unix socket: set-up, shared files, doorbells and the goodbye. A connection opens with a preamble
// (magic, version) each way; then frames of a 4-byte header {type, zero, length} and at most kPayloadBytesMax.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "provider/provider.h"

namespace rrpc::provider::shm {

constexpr std::string_view kMagic = "rrpc-shm";
constexpr uint32_t kVersion = 2;
constexpr size_t kPreambleBytes = 16;
constexpr size_t kHeaderBytes = 4;
constexpr size_t kPayloadBytesMax = 512;
constexpr size_t kNonceBytes = 16;

enum class MessageType : uint8_t {
  kSetup = 1,     // with the sender's control segment
  kReady = 2,     // what the sender found that it can do with the peer's memory
  kSlab = 3,      // with a shared file that receives or exposures refer to from now on
  kDropSlab = 4,  // which is gone
  kDoorbell = 5,
  kGoodbye = 6,
  kReadyBits = 7,  // with the file whose bit the receiver raises after each message from now on
};
bool carries_fd(MessageType type);

struct SetupNotice {
  static constexpr uint32_t kAnyUser = 1;     // other users are let in
  static constexpr uint32_t kNoVmAccess = 2;  // don't touch my ordinary memory
  static constexpr uint32_t kReadyBits = 4;   // a client that knows READY_BITS
  uint32_t ring_entries = 0;
  uint32_t exposure_count = 0;
  uint64_t segment_bytes = 0;
  uint32_t flags = 0;
  uint32_t pid = 0;
  uint64_t nonce_address = 0;
  std::array<std::byte, kNonceBytes> nonce{};
  uint32_t private_bytes = 0;
  std::array<std::byte, kPrivateDataBytesMax> private_data{};
  uint32_t unused = 0;
};

struct SlabNotice {
  uint32_t id = 0;
  uint32_t writable = 0;
  uint64_t address = 0;  // of its first byte, in the owner
  uint64_t length_bytes = 0;
};

struct Goodbye {
  StatusCode code = StatusCode::kUnavailable;
  std::string reason;
};

// A frame ready to send.
class Frame {
 public:
  explicit Frame(MessageType type, Bytes payload = {}, bool with_preamble = false);
  Bytes bytes() const { return Bytes(buffer_).first(used_); }

 private:
  std::array<std::byte, kPreambleBytes + kHeaderBytes + kPayloadBytesMax> buffer_;
  size_t used_ = 0;
};

Frame encode_setup(const SetupNotice& setup);
Frame encode_ready(bool can_access_memory);
Frame encode_slab(const SlabNotice& notice);
Frame encode_drop_slab(uint32_t id);
Frame encode_ready_bits(uint32_t bit);
Frame encode_goodbye(const Status& why, bool with_preamble);

// The next message of what has come; nothing while more bytes are needed.
struct Received {
  MessageType type{};
  Bytes payload;
  size_t bytes() const { return kHeaderBytes + payload.size(); }
};
Result<std::optional<Received>> parse_message(Bytes received);
// True once all of it is there and good, false while more bytes are needed.
Result<bool> check_preamble(Bytes received);
Result<SetupNotice> decode_setup(Bytes payload);
Result<bool> decode_ready(Bytes payload);
Result<SlabNotice> decode_slab(Bytes payload);
Result<uint32_t> decode_drop_slab(Bytes payload);
Result<uint32_t> decode_ready_bits(Bytes payload);
Result<Goodbye> decode_goodbye(Bytes payload);

}  // namespace rrpc::provider::shm
