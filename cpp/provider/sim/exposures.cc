// What this end has open to its peer, and how it is taken back: at once or, as a work request of its own, some time
// later.
#include <utility>

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

Result<uint32_t> SimQueuePair::expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                      uint32_t access) {
  RegionRecord* record = fabric_.regions.find(region.lkey());
  if (record == nullptr || record->host != host_ || !record->contains(address, length_bytes) || access == 0) {
    violation("expose of memory outside its region");
    return invalid_argument("the exposed range is not inside the region");
  }
  if (record->range.read_sink) violation("expose of memory that was registered as the sink of one READ");
  if (state_ == QueuePairState::kError) return error_;
  if (record->range.fd < 0 && fabric_.rng.chance(fabric_.plan.unreachable_memory_probability))
    return failed_precondition("the peer cannot reach this memory");
  RRPC_ASSIGN_OR_RETURN(const uint32_t rkey, exposures_.add(region, address, length_bytes, access));
  const Piece piece{const_cast<std::byte*>(address), static_cast<uint32_t>(length_bytes), region.lkey()};
  exposed_[rkey] = {piece, access, false, 0};
  ++record->exposed_count;
  fabric_.trace(number(), "exposes", rkey);
  return rkey;
}

bool SimQueuePair::revoke(uint32_t rkey) {
  fabric_.trace(number(), "revokes", rkey);
  const auto it = exposed_.find(rkey);
  if (it == exposed_.end() || it->second.revoking) {
    if (invalidated_.contains(rkey)) return true;
    if (state_ != QueuePairState::kError) violation("revoke of a key that is not live");
    return true;
  }
  if (!fabric_.rng.chance(fabric_.plan.slow_revocation_probability)) {
    end_exposure(rkey);
    return true;
  }
  it->second.revoking = true;
  it->second.checksum = checksum_of(memory_of(fabric_, it->second.piece));
  fabric_.events.after(fabric_.rng.between(0, fabric_.plan.revocation_delay_ns_max),
                       [&fabric = fabric_, number = number(), rkey] {
                         SimQueuePair* self = fabric.queue_pair(number);
                         if (self != nullptr && self->revoking(rkey)) self->end_exposure(rkey);
                       });
  return false;
}

bool SimQueuePair::revoking(uint32_t rkey) const {
  const auto it = exposed_.find(rkey);
  return it != exposed_.end() && it->second.revoking;
}

void SimQueuePair::end_exposure(uint32_t rkey) {
  const Exposed exposed = exposed_.at(rkey);
  // A peer that may write changes it itself.
  if (exposed.revoking && exposed.access == kRemoteRead &&
      checksum_of(memory_of(fabric_, exposed.piece)) != exposed.checksum)
    violation("memory changed or gone while its revocation was under way");
  if (RegionRecord* region = fabric_.regions.find(exposed.piece.lkey)) --region->exposed_count;
  exposures_.remove(rkey);
  exposed_.erase(rkey);
  fabric_.trace(number(), "no longer exposes", rkey);
}

// The connection's end closes what is open. What is being revoked stays so until that, or the queue pair, ends.
void SimQueuePair::drop_exposures(bool revoking_too) {
  std::vector<uint32_t> keys;
  for (const auto& [rkey, exposed] : exposed_)
    if (revoking_too || !exposed.revoking) keys.push_back(rkey);
  for (const uint32_t rkey : keys) end_exposure(rkey);
}

Status SimQueuePair::adopt(const MemoryRegion& region) {
  if (adopted_.contains(region.lkey())) return {};
  if (fabric_.rng.chance(fabric_.plan.adopt_refused_probability))
    return resource_exhausted("no more memory can be pinned");
  adopted_.insert(region.lkey());
  return {};
}

}  // namespace rrpc::provider::sim
