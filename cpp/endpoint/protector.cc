#include "endpoint/protector.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/split_work.h"

namespace rrpc::endpoint {

using provider::Cipher;
using provider::CipherNonce;
using provider::CipherTag;
using provider::kTagBytes;
using provider::Opened;

// What a piece's tag covers beside its bytes.
struct RangeBinding {
  uint64_t address = 0;
  uint64_t length_bytes = 0;
};
static_assert(sizeof(RangeBinding) == 16);

namespace {

constexpr uint32_t kRangeKeyShift = 32;
constexpr size_t kPiecesWorthSplitting = 4;  // another thread takes as long to wake as half a piece takes

Bytes bytes_of(const auto& value) { return std::as_bytes(std::span(&value, 1)); }

}  // namespace

Protector::Protector(provider::Protection mode, DirectionCiphers out, DirectionCiphers in, size_t message_bytes_max,
                     const KeyLimits& limits)
    : mode_(mode),
      limits_(limits),
      out_(std::move(out)),
      in_(std::move(in)),
      message_bytes_max_(message_bytes_max),
      sent_(std::make_unique<std::byte[]>(message_bytes_max)),
      received_(std::make_unique<std::byte[]>(message_bytes_max)) {}

Bytes Protector::seal_message(MessageHeader& header, std::span<const Bytes> parts) {
  const size_t body_bytes = header.body_bytes;
  header.body_bytes += kTagBytes;
  ByteWriter writer({sent_.get(), message_bytes_max_});
  writer.write(header);
  for (const Bytes part : parts) writer.write_bytes(part);
  RRPC_CHECK(!writer.failed() && writer.used() + kTagBytes <= message_bytes_max_, "a protected message that fits");
  std::byte* const body = sent_.get() + sizeof(header);
  // At once what is in clear: header and body lie one behind the other.
  const Bytes clear(sent_.get(), sizeof(header) + (encrypts() ? 0 : body_bytes));
  const Bytes secret = encrypts() ? Bytes(body, body_bytes) : Bytes();
  CipherTag tag;
  const CipherNonce nonce{next_sent_ / limits_.messages, next_sent_, 0};
  if (!out_.messages->seal(nonce, clear, {}, secret, body, tag)) return {};
  ++next_sent_;
  writer.write(tag);
  return writer.written();
}

Status Protector::open_message(Bytes& message) {
  const uint64_t number = next_received_;
  if (message.size() < sizeof(MessageHeader) + kTagBytes || message.size() > message_bytes_max_)
    return Status::protocol_error("message " + std::to_string(number) + " from the peer is too short for its " +
                                  "authentication tag");
  std::memcpy(received_.get(), message.data(), message.size());
  MessageHeader header;
  std::memcpy(&header, received_.get(), sizeof(header));
  std::byte* const body = received_.get() + sizeof(header);
  const size_t body_bytes = message.size() - sizeof(header) - kTagBytes;
  CipherTag tag;
  std::memcpy(tag.data(), body + body_bytes, kTagBytes);
  const Bytes clear(received_.get(), sizeof(header) + (encrypts() ? 0 : body_bytes));
  const Bytes secret = encrypts() ? Bytes(body, body_bytes) : Bytes();
  const CipherNonce nonce{number / limits_.messages, number, 0};
  const Opened opened = in_.messages->open(nonce, clear, {}, secret, body, tag);
  if (opened == Opened::kOutOfMemory) return out_of_memory();
  if (opened == Opened::kForged)
    return Status::protocol_error("message " + std::to_string(number) +
                                  " from the peer fails its authentication tag: it was changed, forged, repeated, left "
                                  "out or reordered on its way");
  ++next_received_;
  header.body_bytes -= kTagBytes;  // a number that was wrong stays wrong
  std::memcpy(received_.get(), &header, sizeof(header));
  message = {received_.get(), sizeof(header) + body_bytes};
  return {};
}

// One range, whose pieces two threads may work on.
struct Protector::Job {
  DirectionCiphers& ciphers;
  bool seals = false;
  bool encrypts = false;
  RangeBinding binding;
  CipherNonce nonce;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t piece_bytes = 0;
  size_t first = 0;
  std::span<CipherTag> tags;
  std::atomic<bool> first_in_use{false};
  std::atomic<Opened> outcome{Opened::kGenuine};  // the worst of all pieces
};

void Protector::do_piece(void* context, size_t index) {
  Job& job = *static_cast<Job*>(context);
  index += job.first;
  // Whoever finds the first cipher in use has the second alone. The exchange also releases what the other thread did
  // with the second before it took the first.
  const size_t lane = job.first_in_use.exchange(true, std::memory_order_acq_rel) ? 1 : 0;
  Cipher& cipher = *job.ciphers.ranges[lane];
  const uint64_t begin = index * job.piece_bytes;
  const Bytes piece(job.in + begin, std::min<uint64_t>(job.piece_bytes, job.binding.length_bytes - begin));
  const Bytes clear = job.encrypts ? Bytes() : piece;
  const Bytes secret = job.encrypts ? piece : Bytes();
  std::byte* const out = job.encrypts ? job.out + begin : nullptr;
  CipherNonce nonce = job.nonce;
  nonce.part = static_cast<uint32_t>(index);
  CipherTag& tag = job.tags[index];
  Opened outcome = Opened::kGenuine;
  if (!job.seals)
    outcome = cipher.open(nonce, bytes_of(job.binding), clear, secret, out, tag);
  else if (!cipher.seal(nonce, bytes_of(job.binding), clear, secret, out, tag))
    outcome = Opened::kOutOfMemory;
  // One that is forged tells more than one that can't be checked.
  Opened genuine = Opened::kGenuine;
  if (outcome == Opened::kForged) job.outcome.store(outcome, std::memory_order_relaxed);
  if (outcome == Opened::kOutOfMemory) job.outcome.compare_exchange_strong(genuine, outcome, std::memory_order_relaxed);
  if (lane == 0) job.first_in_use.store(false, std::memory_order_release);
}

Opened Protector::work_on(Job& job, size_t count) {
  if (count < kPiecesWorthSplitting)
    for (size_t index = 0; index < count; ++index) do_piece(&job, index);
  else
    split_work(count, &do_piece, &job);
  return job.outcome.load(std::memory_order_relaxed);
}

SealRef Protector::seal_range(uint64_t address, Bytes bytes, std::byte* out, uint32_t pieces_max) {
  bytes_under_key_ += bytes.size();
  if (++ranges_under_key_ > limits_.ranges || bytes_under_key_ > limits_.range_bytes) {
    RRPC_CHECK(++range_key_ != 0, "a connection ends before it has used up its keys");
    ranges_under_key_ = 1;
    bytes_under_key_ = bytes.size();
  }
  auto seal = std::make_shared<Seal>();
  seal->number = uint64_t{range_key_} << kRangeKeyShift | ranges_under_key_;
  seal->pieces_max = pieces_max;
  seal->tags.resize(seal_piece_count(bytes.size(), pieces_max));
  Job job{.ciphers = out_,
          .seals = true,
          .encrypts = encrypts(),
          .binding = {address, bytes.size()},
          .nonce = {range_key_, seal->number, 0},
          .in = bytes.data(),
          .out = out,
          .piece_bytes = seal_piece_bytes(bytes.size(), pieces_max),
          .tags = seal->tags};
  if (work_on(job, seal->tags.size()) != Opened::kGenuine) return nullptr;
  return seal;
}

Opened Protector::open_range(uint64_t address, MutableBytes bytes, const Seal& seal, size_t first, size_t count) {
  RRPC_CHECK(seal.tags.size() == seal_piece_count(bytes.size(), seal.pieces_max), "a tag for each piece");
  auto tags = seal.tags;  // what Job may write to
  Job job{.ciphers = in_,
          .seals = false,
          .encrypts = encrypts(),
          .binding = {address, bytes.size()},
          .nonce = {seal.number >> kRangeKeyShift, seal.number, 0},
          .in = bytes.data(),
          .out = bytes.data(),
          .piece_bytes = seal_piece_bytes(bytes.size(), seal.pieces_max),
          .first = first,
          .tags = tags};
  return work_on(job, count);
}

}  // namespace rrpc::endpoint
