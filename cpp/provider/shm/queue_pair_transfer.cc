#include "provider/shm/queue_pair.h"

namespace rrpc::provider::shm {

// For so much a second thread is worth waking. What fits into a processor's own cache is copied faster by one.
static constexpr uint64_t kLongWorkBytes = 8 << 20;

// Not before the peer can read of the files that requests refer to.
void ShmQueuePair::run_pending(size_t& work_bytes) {
  // The chunks of one transfer wait together.
  if (!pending_.empty() && pending_.front().left_bytes * pending_.size() >= kLongWorkBytes) long_work_ = true;
  while (!pending_.empty() && !channel_.backlogged()) {
    SendRequest& request = pending_.front();
    Outcome outcome;
    if (request.opcode == Opcode::kSend)
      outcome = deliver(request.cursor.sges(), request.inline_data, request.solicited);
    else if (!transfer_some(request, work_bytes, outcome))
      return;
    if (outcome.later) return;
    const SendRequest done = std::move(request);
    pending_.pop_front();
    finish(done.wr_id, done.opcode, done.signalled, std::move(outcome));
  }
  if (pending_.empty()) long_work_ = false;
}

inline bool ShmQueuePair::claim_receive(ReceiveEntry& entry, uint32_t length_bytes) const {
  uint32_t expected = posted_state(send_sequence_);
  if (!entry.state.compare_exchange_strong(expected, claimed_state(send_sequence_), std::memory_order_acq_rel))
    return false;
  entry.landed_bytes.store(length_bytes, std::memory_order_relaxed);
  return true;
}

// Returns null if the receive is too short, or lies outside the writable slabs that are mapped here. Reads each field
// once, since the peer may change it at any time.
inline std::byte* ShmQueuePair::landing_place(const ReceiveEntry& entry, uint32_t length_bytes) const {
  if (length_bytes > entry.posted_bytes.load(std::memory_order_relaxed)) return nullptr;
  const uint64_t offset_bytes = entry.offset_bytes.load(std::memory_order_relaxed);
  const PeerSlabs::Entry* slab = slabs_.find(entry.slab_id.load(std::memory_order_relaxed));
  if (slab == nullptr || !slab->writable || !slab->contains(offset_bytes, length_bytes)) return nullptr;
  return slab->local(offset_bytes);
}

// Where a message goes that fits into the entry of the peer's next posted receive; else null. It isn't claimed, as the
// entry is nobody else's whatever becomes of the receive.
inline std::byte* ShmQueuePair::place_in_entry(ReceiveEntry& entry, uint32_t length_bytes) const {
  const bool fits = length_bytes <= kEntryMessageBytes &&
                    entry.state.load(std::memory_order_acquire) == posted_state(send_sequence_) &&
                    length_bytes <= entry.posted_bytes.load(std::memory_order_relaxed);
  if (!fits) return nullptr;
  entry.landed_bytes.store(length_bytes | kLandedInEntry, std::memory_order_relaxed);
  return entry.message;
}

// Takes the peer's next posted receive; commit_message() hands it over.
std::byte* ShmQueuePair::reserve_message(uint32_t length_bytes) {
  if (state_ != QueuePairState::kConnected || inherited() || !pending_.empty() || channel_.backlogged()) return nullptr;
  ReceiveEntry& entry = peer_.receive(send_sequence_);
  if (std::byte* const place = place_in_entry(entry, length_bytes)) [[likely]]
    return place;
  return reserve_slot(entry, length_bytes);
}

std::byte* ShmQueuePair::reserve_slot(ReceiveEntry& entry, uint32_t length_bytes) const {
  if (!claim_receive(entry, length_bytes)) return nullptr;
  std::byte* const place = landing_place(entry, length_bytes);
  if (place == nullptr) [[unlikely]]
    entry.state.store(posted_state(send_sequence_), std::memory_order_release);
  return place;
}

// Without room for the bell the peer has something to read already.
void ShmQueuePair::tell_poller(bool solicited) {
  const bool asleep = peers_bits_ && reinterpret_cast<ReadyPage*>(peers_bits_->data())->raise(peers_bit_, solicited);
  const bool armed_for_us = claims_wake_up(peer_.header().armed, solicited);
  if (asleep || armed_for_us) (void)channel_.send_now(Frame(MessageType::kDoorbell));
}

inline void ShmQueuePair::hand_over(bool solicited) {
  peer_.receive(send_sequence_).state.exchange(landed_state(send_sequence_), std::memory_order_seq_cst);
  ++send_sequence_;
  tell_poller(solicited);
}

// The peer may be polling, so no message waits for another one.
bool ShmQueuePair::commit_message(bool /*more*/, uint64_t /*wr_id*/) {
  hand_over(true);
  return false;
}

ShmQueuePair::Outcome ShmQueuePair::deliver(std::span<const Sge> sges, bool inline_data, bool solicited) {
  if (!inside_their_regions(sges, inline_data)) [[unlikely]]
    return {WcStatus::kLocalProtection, internal_error("a send from outside its memory region")};
  const auto length_bytes = static_cast<uint32_t>(total_bytes(sges));
  ReceiveEntry& entry = peer_.receive(send_sequence_);
  if (std::byte* const place = place_in_entry(entry, length_bytes)) {
    gather(sges, place);
    return hand_over(solicited), Outcome();
  }
  if (!claim_receive(entry, length_bytes)) return not_ready();
  Outcome outcome;
  std::byte* place = landing_place(entry, length_bytes);
  if (place == nullptr) [[unlikely]]
    outcome = look_for_landing_place(entry, length_bytes, place);
  if (outcome.later) {
    entry.state.store(posted_state(send_sequence_), std::memory_order_release);
    return outcome;
  }
  if (place != nullptr) gather(sges, place);
  hand_over(solicited);
  return outcome;
}

// The peer has either left (its goodbye is in the socket by now) or broken the rule that a receive comes first.
ShmQueuePair::Outcome ShmQueuePair::not_ready() {
  if (Status status = read_socket(); !status.ok()) return {WcStatus::kFlushed, std::move(status)};
  return {WcStatus::kRnrRetryExceeded, internal_error("receiver not ready: no receive was posted for a message")};
}

// Reads the socket first: the peer's notice of the file may still be there.
ShmQueuePair::Outcome ShmQueuePair::look_for_landing_place(const ReceiveEntry& entry, uint32_t length_bytes,
                                                           std::byte*& place) {
  if (length_bytes > entry.posted_bytes.load(std::memory_order_relaxed))
    return {WcStatus::kRemoteOperation, internal_error("a message of " + std::to_string(length_bytes) +
                                                       " bytes is longer than the peer's receive")};
  const uint32_t slab_id = entry.slab_id.load(std::memory_order_relaxed);
  if (slabs_.find(slab_id) == nullptr) {
    if (Status status = read_socket(); !status.ok()) return {WcStatus::kFlushed, std::move(status)};
    if (slabs_.find(slab_id) == nullptr && more_to_read_) return {.later = true};
  }
  place = landing_place(entry, length_bytes);
  if (place != nullptr) return {};
  return {WcStatus::kRemoteOperation,
          Status::protocol_error("the peer posted a receive outside its slab " + std::to_string(slab_id))};
}

// False while something is left to do.
bool ShmQueuePair::transfer_some(SendRequest& request, size_t& work_bytes, Outcome& outcome) {
  if (!inside_their_regions(request.cursor.sges(), false)) {
    outcome = {WcStatus::kLocalProtection, internal_error("a transfer outside its local memory region")};
    return true;
  }
  if (work_bytes == 0) return false;
  const uint64_t count = std::min<uint64_t>(request.left_bytes, work_bytes);
  work_bytes -= count;
  outcome = transfer_chunk(request, count);
  return outcome.later || outcome.status != WcStatus::kSuccess || request.left_bytes == 0;
}

ShmQueuePair::Outcome ShmQueuePair::transfer_chunk(SendRequest& request, uint64_t count) {
  if (request.opcode == Opcode::kRead) return checked_chunk(request, count, kRemoteRead);
  // The owner that takes the range back looks here after it has closed the entry, we look at the entry after this.
  std::atomic<uint32_t>& active_write = peer_.header().active_write;
  active_write.exchange(request.rkey, std::memory_order_seq_cst);
  Outcome outcome = checked_chunk(request, count, kRemoteWrite);
  active_write.store(0, std::memory_order_release);
  return outcome;
}

// A peer that has left has closed everything, and its goodbye says so.
ShmQueuePair::Outcome ShmQueuePair::refused() {
  if (Status status = read_socket(); !status.ok()) return {WcStatus::kFlushed, std::move(status)};
  return {WcStatus::kRemoteAccess, internal_error("the peer refused access to its memory: rkey, range or rights")};
}

ShmQueuePair::Outcome ShmQueuePair::checked_chunk(SendRequest& request, uint64_t count, Access wanted) {
  const auto grant = remote_.find(request.rkey, request.remote_address, request.left_bytes, wanted);
  if (!grant) return refused();
  if (grant->kind == kOrdinary && !we_read_peer_)
    return {WcStatus::kRemoteAccess, Status::protocol_error("the peer exposed memory that this process can't reach")};
  const auto gone = [&] { return grant->kind == kOrdinary && peer_process_->ended(); };
  const auto move = [&] {
    if (gone()) return RemoteMemory::Copied::kPeerGone;
    return wanted == kRemoteRead
               ? remote_.read(*grant, peer_process_->pid(), request.remote_address, count, request.cursor, long_work_)
               : remote_.write(*grant, peer_process_->pid(), request.remote_address, count, request.cursor, long_work_);
  };
  RemoteMemory::Copied copied = move();
  if (copied == RemoteMemory::Copied::kUnknownSlab) {
    if (Status status = read_socket(); !status.ok()) return {WcStatus::kFlushed, std::move(status)};
    copied = move();
    if (copied == RemoteMemory::Copied::kUnknownSlab && more_to_read_) return {.later = true};
  }
  // While it lives its pid is no other's: bytes of a successor never pass for its own.
  if (copied == RemoteMemory::Copied::kPeerGone || gone())
    return {WcStatus::kFlushed, unavailable("peer closed: it ended during a transfer")};
  if (!remote_.still_open(request.rkey)) return refused();
  if (copied == RemoteMemory::Copied::kUnknownSlab)
    return {WcStatus::kRemoteOperation,
            Status::protocol_error("the peer exposed memory of slab " + std::to_string(grant->slab_id) +
                                   ", which it never shared")};
  if (copied != RemoteMemory::Copied::kAll) return refused();
  request.remote_address += count;
  request.left_bytes -= count;
  return {};
}

std::unique_ptr<Loan> ShmQueuePair::end_lending(uint32_t rkey) {
  if (inherited() || !exposures_.close_lent(rkey)) return nullptr;
  return std::make_unique<ShmLoan>(own_.lending(rkey & (kExposureCount - 1)), rkey >> kExposureIndexBits,
                                   peer_process_);
}

Result<std::unique_ptr<BorrowedRange>> ShmQueuePair::borrow(uint32_t rkey, uint64_t remote_address,
                                                            uint64_t length_bytes) {
  RRPC_RETURN_IF_ERROR(usable());
  const auto grant = remote_.find(rkey, remote_address, length_bytes, kLend);
  if (!grant || grant->kind != kMapped || length_bytes == 0)
    return permission_denied("the peer doesn't lend this range of its memory");
  RemoteMemory::Copied failure{};
  std::byte* place = remote_.locate(*grant, remote_address, length_bytes, false, failure);
  if (place == nullptr && failure == RemoteMemory::Copied::kUnknownSlab) {
    if (Status status = read_socket(); !status.ok()) return fail(status), status;  // the file's notice may be there
    place = remote_.locate(*grant, remote_address, length_bytes, false, failure);
  }
  const PeerSlabs::Entry* const entry = slabs_.find(grant->slab_id);
  if (place == nullptr || entry->writable) return failed_precondition("the range isn't mapped here for reading");
  auto range = ShmBorrowedRange::take(entry->slab, place, length_bytes, peer_.lending(rkey & (kExposureCount - 1)),
                                      rkey >> kExposureIndexBits);
  if (range == nullptr) return permission_denied("the peer has taken the range back");
  return range;
}

}  // namespace rrpc::provider::shm
