// The protection of one connection: tags and encryption of its messages and of what its peers fetch from each other.
//
// No nonce is used twice under a key. Each direction has keys of its own for messages and for ranges. A message's nonce
// is its number in its direction: the transport is reliable and in order, so the number isn't sent, and a message that
// is repeated, missing, or out of its turn fails its tag as a forged one does. A range's nonce is its number, which
// counts every seal that its owner makes, and the number of the piece. Keys roll at fixed message numbers; those of
// ranges are named by the upper half of the range's number, since ranges are fetched in any order.
//
// The tag of a message is of its header and its body. The tag of a piece is of the range's address and length and of
// the piece's bytes. What a message says of ranges (addresses, rkeys, numbers, tags) is under the message's own tag, so
// that no range can stand for another.
//
// kSign has the bytes as they are, kEncrypt has them encrypted. Not thread-safe, as the endpoint; long ranges are
// worked on by two threads (base/split_work.h), which is over when a call returns.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "endpoint/header.h"
#include "endpoint/seal.h"
#include "provider/protection.h"

namespace rrpc::endpoint {

// When the next key is used. Far below the limits of NIST SP 800-38D and of RFC 8446, section 5.5: 2^20 messages of a
// usual slot are 2^29 blocks, 2^38 bytes are 2^34. Both ends have the same of messages.
constexpr uint64_t kMessagesPerKey = 1 << 20;
constexpr uint64_t kRangesPerKey = 1 << 24;  // the sender's choice, up to 2^32 - 1
constexpr uint64_t kRangeBytesPerKey = 1ULL << 38;
struct KeyLimits {  // others in tests
  uint64_t messages = kMessagesPerKey;
  uint64_t ranges = kRangesPerKey;
  uint64_t range_bytes = kRangeBytesPerKey;
};

// Of one direction. Two threads at most work on a range.
struct DirectionCiphers {
  std::unique_ptr<provider::Cipher> messages;
  std::array<std::unique_ptr<provider::Cipher>, 2> ranges;
};

class Protector {
 public:
  // `message_bytes_max`: of a message with header and tag.
  Protector(provider::Protection mode, DirectionCiphers out, DirectionCiphers in, size_t message_bytes_max,
            const KeyLimits& limits);

  bool encrypts() const { return mode_ == provider::Protection::kEncrypt; }

  // The next message to the peer, with its tag, which header.body_bytes counts from then on. Valid until the next call;
  // empty: out of memory.
  Bytes seal_message(MessageHeader& header, std::span<const Bytes> parts);
  // Checks the next message of the peer (a protocol error; ResourceExhausted where it can't be checked) and makes
  // `message` what was sealed: a copy of this end's own, valid until the next call, since a peer on this host may write
  // to the slot at any time.
  Status open_message(Bytes& message);

  // Seals a range of this end's that the peer will know as `address`: reads `bytes`, and when encrypting writes as many
  // to `out`. Null: out of memory.
  SealRef seal_range(uint64_t address, Bytes bytes, std::byte* out, uint32_t pieces_max);
  // Checks `count` pieces from `first` on of a range of the peer's that has been fetched to `bytes`, and decrypts them
  // there. Unless it is kGenuine, nobody is to have any of them.
  provider::Opened open_range(uint64_t address, MutableBytes bytes, const Seal& seal, size_t first, size_t count);

 private:
  struct Job;
  static void do_piece(void* context, size_t index);
  static provider::Opened work_on(Job& job, size_t count);

  const provider::Protection mode_;
  const KeyLimits limits_;
  DirectionCiphers out_;
  DirectionCiphers in_;
  // Message 0 of each direction is HELLO, which isn't protected.
  uint64_t next_sent_ = 1;
  uint64_t next_received_ = 1;
  uint32_t range_key_ = 0;
  uint32_t ranges_under_key_ = 0;
  uint64_t bytes_under_key_ = 0;
  const size_t message_bytes_max_;
  std::unique_ptr<std::byte[]> sent_;
  std::unique_ptr<std::byte[]> received_;
};

}  // namespace rrpc::endpoint
