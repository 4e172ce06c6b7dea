// What a protected connection does differently: messages with tags, ranges with seals, and nothing fetched is anybody's
// before it was checked.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "endpoint/endpoint.h"

namespace rrpc::endpoint {

namespace {

// So much is checked before other connections have a turn: some ms of one core.
constexpr size_t kCheckedAtOnceBytes = 4 << 20;

Status not_as_sealed(const TransferSegment& segment) {
  return Status::protocol_error("a buffer of " + std::to_string(segment.length_bytes) +
                                " bytes that the peer sent (range " + std::to_string(segment.seal->number) +
                                ") fails its authentication tag: it was changed while it was being sent, which its "
                                "sender must not do before the call has ended, or tampered with on its way");
}

}  // namespace

void Endpoint::protect(provider::Protection mode, DirectionCiphers out, DirectionCiphers in, const KeyLimits& limits) {
  RRPC_CHECK(established_ && protector_ == nullptr, "a connection is protected once, after its offers");
  const size_t message_bytes_max = sizeof(MessageHeader) + body_bytes_max_;
  protector_ = std::make_unique<Protector>(mode, std::move(out), std::move(in), message_bytes_max, limits);
  body_bytes_max_ -= provider::kTagBytes;
  plain_bytes_end_ = 0;
  takes_plain_ = false;
}

void Endpoint::send_protected(MessageHeader& header, std::span<const Bytes> parts, Pushes pushes) {
  RRPC_CHECK(protector_ != nullptr && header.body_bytes <= body_bytes_max_, "a message larger than a slot");
  const Bytes message = protector_->seal_message(header, parts);
  if (message.empty()) return fail(out_of_memory());
  const auto length_bytes = static_cast<uint32_t>(message.size());
  std::byte* const slot = bytes_alone(pushes) ? qp_->reserve_message(length_bytes) : nullptr;
  if (slot == nullptr) {
    const Bytes rest = message.subspan(sizeof(header));
    return post_message(header, {&rest, 1}, pushes);
  }
  std::memcpy(slot, message.data(), message.size());
  commit_message();
}

// Encrypts into pool memory. Before that is open to the peer: what lay there before is nobody's to see. So the tags
// can't cover the rkey, which is under the message's tag anyway.
Status Endpoint::encrypt(Exposure& exposure, const Buffer& buffer, uint32_t pieces_max) {
  if (!exposure.staged) {
    RRPC_ASSIGN_OR_RETURN(exposure.staged, allocate_staged(exposure, buffer.length_bytes));
  }
  PoolBlock joined;
  const std::byte* source = buffer.data;
  if (!buffer.pieces.empty()) {
    RRPC_ASSIGN_OR_RETURN(joined, context_.pool.allocate(buffer.length_bytes, BlockKind::kLanding));
    ByteWriter writer({joined.data(), buffer.length_bytes});
    for (const MutableBytes piece : buffer.pieces) writer.write_bytes(piece);
    tally(&Counters::copies);
    tally(&Counters::bytes_copied, static_cast<int64_t>(buffer.length_bytes));
    source = joined.data();
  }
  std::byte* const target = exposure.staged.data();
  exposure.descriptor.seal =
      protector_->seal_range(reinterpret_cast<uint64_t>(target), {source, buffer.length_bytes}, target, pieces_max);
  return exposure.descriptor.seal != nullptr ? Status() : out_of_memory();
}

Result<Exposure> Endpoint::expose_sealed(Buffer buffer, uint32_t access, uint32_t pieces_max) {
  if (access != provider::kRemoteRead) return failed_precondition("no peer of a protected connection writes");
  if (buffer.length_bytes > kSealedBytesMax)
    return resource_exhausted("a buffer of " + std::to_string(buffer.length_bytes) + " bytes; a protected connection " +
                              "takes at most " + std::to_string(kSealedBytesMax));
  Exposure exposure;
  exposure.descriptor.length_bytes = buffer.length_bytes;
  if (buffer.length_bytes == 0) {
    exposure.descriptor.seal = std::make_shared<Seal>();
  } else if (encrypts()) {
    RRPC_RETURN_IF_ERROR(encrypt(exposure, buffer, pieces_max));
    RRPC_RETURN_IF_ERROR(open_to_peer(exposure, exposure.staged.data(), kNoOwner, access));
  } else {
    RRPC_CHECK(buffer.pieces.empty(), "pieces are exposed one by one");
    std::byte* data = buffer.data;
    Status status = qp_->reaches_pool()
                        ? open_to_peer(exposure, data, buffer.owner_id, access)
                        : failed_precondition("the peer is another user's: only copies are opened to it");
    if (status.code() == StatusCode::kFailedPrecondition) {
      RRPC_RETURN_IF_ERROR(stage(exposure, {data, buffer.length_bytes}));
      data = exposure.staged.data();
      status = open_to_peer(exposure, data, kNoOwner, access);
    }
    RRPC_RETURN_IF_ERROR(status);
    exposure.descriptor.seal =
        protector_->seal_range(exposure.descriptor.address, {data, buffer.length_bytes}, nullptr, pieces_max);
    if (exposure.descriptor.seal == nullptr) return revoke(std::move(exposure)), out_of_memory();
  }
  exposure.buffer = std::move(buffer);
  return exposure;
}

Status Endpoint::seal_again(Exposure& exposure) {
  const uint32_t pieces_max = exposure.descriptor.seal->pieces_max;
  if (encrypts()) return encrypt(exposure, exposure.buffer, pieces_max);
  const std::byte* const data = exposure.staged ? exposure.staged.data() : exposure.buffer.data;
  exposure.descriptor.seal = protector_->seal_range(exposure.descriptor.address,
                                                    {data, exposure.descriptor.length_bytes}, nullptr, pieces_max);
  return exposure.descriptor.seal != nullptr ? Status() : out_of_memory();
}

size_t Endpoint::go_on_with_bulk() {
  pump();  // first, so that the transport works meanwhile
  return bulk_.has_landed() && !failed() ? check_landed() : 0;
}

// What has landed, in its order, while more of it is on its way. Nobody is told of a transfer before all of it was
// checked, and of one that fails nobody gets anything.
size_t Endpoint::check_landed() {
  size_t done = 0;
  for (size_t bytes_left = kCheckedAtOnceBytes; bulk_.has_landed() && bytes_left > 0; ++done) {
    const auto [segment, first, landed_count] = bulk_.first_landed();
    const uint64_t piece_bytes = seal_piece_bytes(segment.length_bytes, segment.seal->pieces_max);
    const size_t count = std::min<size_t>(landed_count, std::max<uint64_t>(bytes_left / piece_bytes, 1));
    const MutableBytes bytes(segment.local, segment.length_bytes);
    const provider::Opened opened = protector_->open_range(segment.remote_address, bytes, *segment.seal, first, count);
    if (opened != provider::Opened::kGenuine) {
      const bool forged = opened == provider::Opened::kForged;
      const Status why = forged ? not_as_sealed(segment) : out_of_memory();
      if (forged) bulk_.refuse_first_landed();
      close(why);
      return done + 1;
    }
    bytes_left -= std::min<uint64_t>(bytes_left, count * piece_bytes);
    bulk_.first_landed_was_checked(count);
  }
  return done;
}

}  // namespace rrpc::endpoint
