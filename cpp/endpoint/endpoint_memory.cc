// Registered memory for transfers, memory opened to the peer, and its way back.
#include <cstring>
#include <utility>

#include "base/check.h"
#include "endpoint/endpoint.h"

namespace rrpc::endpoint {

using provider::QueuePairState;

Result<RegionRef> Endpoint::register_for_transfer(std::byte* address, size_t length_bytes, bool read_sink) {
  provider::MemoryRange range{address, length_bytes, -1, false};
  range.read_sink = read_sink;
  RRPC_ASSIGN_OR_RETURN(RegionRef region, context_.registrations.register_once(range));
  RRPC_RETURN_IF_ERROR(qp_->adopt(*region));
  return region;
}

// A protection domain of one peer's own holds no more than what is meant for that peer: such adapters check little.
Result<RegionRef> Endpoint::region_for(std::byte* address, size_t length_bytes, uint64_t owner_id) {
  if (length_bytes > 0 && qp_->exposure_kind() == provider::ExposureKind::kRegistration)
    return register_for_transfer(address, length_bytes, false);
  RRPC_ASSIGN_OR_RETURN(RegionRef region, context_.registrations.get(address, length_bytes, owner_id));
  RRPC_RETURN_IF_ERROR(qp_->adopt(*region));
  return region;
}

Result<RegionRef> Endpoint::sink_region_for(std::byte* address, size_t length_bytes, uint64_t owner_id) {
  if (length_bytes == 0) return RegionRef();
  if (!qp_->limits().dedicated_read_sinks) return region_for(address, length_bytes, owner_id);
  return register_for_transfer(address, length_bytes, true);
}

static std::atomic<int64_t> Counters::* counter_of(provider::ExposureKind kind) {
  switch (kind) {
    case provider::ExposureKind::kWindow:
      return &Counters::exposures_by_window;
    case provider::ExposureKind::kRegistration:
      return &Counters::exposures_by_registration;
    case provider::ExposureKind::kChecked:
      break;
  }
  return &Counters::exposures_by_check;
}

// No adopt(): how much of the region an exposure needs readied is the provider's to know, and an error of its
// expose() is an error of this one call anyway.
Status Endpoint::open_to_peer(Exposure& exposure, std::byte* address, uint64_t owner_id, uint32_t access) {
  const size_t length_bytes = exposure.descriptor.length_bytes;
  RegistrationCache& registrations = exposure.lender ? exposure.lender->registrations : context_.registrations;
  const bool only_read = (access & provider::kRemoteWrite) == 0;
  RRPC_ASSIGN_OR_RETURN(exposure.region, registrations.get(address, length_bytes, owner_id, only_read));
  RRPC_ASSIGN_OR_RETURN(exposure.descriptor.rkey, qp_->expose(*exposure.region, address, length_bytes, access));
  exposure.descriptor.address = reinterpret_cast<uint64_t>(address);
  tally(counter_of(qp_->exposure_kind()));
  tally(&Counters::exposures_live);
  tally(&Counters::bytes_exposed, static_cast<int64_t>(length_bytes));
  return {};
}

void Endpoint::open_on_rails(Exposure& exposure) {
  Descriptor& open = exposure.descriptor;
  if (open.length_bytes < geometry_.striped_bytes_min) return;
  const std::byte* const address = exposure.staged ? exposure.staged.data() : exposure.buffer.data;
  rails_->expose(*exposure.region, address, open.length_bytes, open.rail_keys);
}

// Pool memory that the peer can reach.
Result<PoolBlock> Endpoint::allocate_staged(Exposure& exposure, size_t length_bytes) {
  if (!qp_->reaches_pool()) {
    if (!peer_pool_) peer_pool_ = std::make_shared<PeerPool>(context_.device);
    exposure.lender = peer_pool_;
  }
  Pool& pool = exposure.lender ? exposure.lender->pool : context_.pool;
  auto staged = pool.allocate(length_bytes, BlockKind::kShared);
  if (exposure.lender && staged.status().code() == StatusCode::kResourceExhausted)
    return resource_exhausted("kOtherUserBytesMax: " + std::to_string(length_bytes) +
                              " bytes more than are copied for " + qp_->peer_description() +
                              ", another user, at a time: " + std::to_string(kOtherUserBytesMax) +
                              " in all; send less, or use tcp://");
  if (staged.ok()) {
    tally(&Counters::stagings);
    tally(&Counters::bytes_staged, static_cast<int64_t>(length_bytes));
  }
  return staged;
}

// Copies what the peer can't reach where it is into pool memory, which it can.
Status Endpoint::stage(Exposure& exposure, Bytes bytes) {
  RRPC_ASSIGN_OR_RETURN(exposure.staged, allocate_staged(exposure, bytes.size()));
  std::memcpy(exposure.staged.data(), bytes.data(), bytes.size());
  return {};
}

// FailedPrecondition where the peer can't read it in place, or may not keep more.
Status Endpoint::lend(Exposure& exposure, const Buffer& buffer) {
  if (!lent_ || !qp_->lends() || !buffer.pieces.empty() || !context_.pool.find(buffer.data))
    return failed_precondition("only pool memory is lent");
  auto charge = Lending::process().charge(buffer.length_bytes, lent_);
  if (charge == nullptr) return failed_precondition("lent_bytes_max");
  RRPC_RETURN_IF_ERROR(open_to_peer(exposure, buffer.data, buffer.owner_id, provider::kRemoteRead | provider::kLend));
  exposure.lent = std::move(charge);
  exposure.descriptor.lent = true;
  return {};
}

ReceivedBlock Endpoint::borrow(const Descriptor& descriptor) {
  if (protector_ != nullptr || !descriptor.lent || descriptor.continues || descriptor.length_bytes == 0) return {};
  auto range = qp_->borrow(descriptor.rkey, descriptor.address, descriptor.length_bytes);
  if (!range.ok()) return {};
  tally(&Counters::ranges_borrowed);
  tally(&Counters::bytes_borrowed, static_cast<int64_t>(descriptor.length_bytes));
  return ReceivedBlock(std::move(*range));
}

Result<Exposure> Endpoint::expose(Buffer buffer, uint32_t access, uint32_t pieces_max) {
  Exposure exposure;
  if (qp_->state() == QueuePairState::kError) return unavailable(qp_->error().message());
  if (protector_ != nullptr) return expose_sealed(std::move(buffer), access, pieces_max);
  exposure.descriptor.length_bytes = buffer.length_bytes;
  if (buffer.lend && buffer.length_bytes > 0 && access == provider::kRemoteRead && lend(exposure, buffer).ok()) {
    exposure.buffer = std::move(buffer);
    return exposure;
  }
  Status status;
  if (buffer.length_bytes > 0)
    status = qp_->reaches_pool() ? open_to_peer(exposure, buffer.data, buffer.owner_id, access)
                                 : failed_precondition("the peer is another user's: only copies are opened to it");
  if (status.code() == StatusCode::kFailedPrecondition && access == provider::kRemoteRead) {
    RRPC_RETURN_IF_ERROR(stage(exposure, {buffer.data, buffer.length_bytes}));
    status = open_to_peer(exposure, exposure.staged.data(), kNoOwner, access);
  }
  RRPC_RETURN_IF_ERROR(status);
  exposure.buffer = std::move(buffer);
  // The body of a message tells of no rails.
  if (rails_ && access == provider::kRemoteRead && pieces_max == kSealPiecesMax) open_on_rails(exposure);
  return exposure;
}

void Endpoint::revoke(Exposure exposure) {
  if (exposure.region == nullptr) return;
  if (exposure.lent) {
    auto loan = qp_->end_lending(exposure.descriptor.rkey);
    count_closed(exposure);
    if (loan != nullptr) Lending::process().keep(std::move(exposure), std::move(loan));
    return;
  }
  const bool over = qp_->revoke(exposure.descriptor.rkey);
  if ((!rails_ || rails_->revoke(exposure.descriptor.rail_keys)) && over) return count_closed(exposure);
  retiring_.push_back(std::move(exposure));
}

bool Endpoint::still_revoking(const Exposure& exposure) const {
  return qp_->revoking(exposure.descriptor.rkey) || (rails_ && rails_->revoking(exposure.descriptor.rail_keys));
}

void Endpoint::count_closed(const Exposure& exposure) {
  if (rails_) rails_->closed(exposure.descriptor.rail_keys);
  tally(&Counters::exposures_live, -1);
  tally(&Counters::bytes_exposed, -static_cast<int64_t>(exposure.descriptor.length_bytes));
}

size_t Endpoint::let_go_of_revoked() {
  return std::erase_if(retiring_, [this](const Exposure& exposure) {
    if (still_revoking(exposure)) return false;
    count_closed(exposure);
    return true;
  });
}

Status Endpoint::add_rail(size_t index, RailQueues& queues, const RailToken& token, TimeNs deadline) {
  if (failed()) return failure_;
  RRPC_CHECK(!in_progress_, "a rail is added between polls");
  if (!established_) return failed_precondition("a connection has rails once it is established");
  if (protector_ != nullptr)
    return failed_precondition("a protected connection has no rails: nothing would prove who is at their other end");
  if (share_)
    return failed_precondition("shared_receive_slots: a connection that shares receives with others has no rails");
  if (rails_ == nullptr) {
    auto joined = std::make_unique<JoinedQueue>();
    joined->reserve();
    rails_ = std::make_unique<Rails>(*joined, *qp_);
    joined->add(std::move(cq_));
    cq_ = std::move(joined);
    bulk_.use_rails(*rails_);
  }
  return rails_->add(index, queues, token, deadline);
}

void Endpoint::destroy_queue_pair() {
  if (share_ && qp_) {
    give_back_shared_receives();
    if (qp_->lost_receives()) share_.forfeit();
  }
  if (rails_) rails_->destroy();
  qp_.reset();
  share_ = {};
  for (const Exposure& exposure : retiring_) count_closed(exposure);  // that has ended their revocations
  retiring_.clear();
}

}  // namespace rrpc::endpoint
