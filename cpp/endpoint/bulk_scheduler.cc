#include "endpoint/bulk_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rrpc::endpoint {

using provider::Opcode;
using provider::WcStatus;

namespace {

constexpr size_t kWorthCheckingBytes = 2 << 20;

bool follows(const TransferSegment& before, const TransferSegment& segment) {
  return segment.rkey == before.rkey && segment.remote_address == before.remote_address + before.length_bytes;
}

}  // namespace

BulkScheduler::BulkScheduler(uint32_t window, size_t chunk_bytes_max)
    : window_(window), chunk_bytes_max_(chunk_bytes_max), slots_(window) {
  RRPC_CHECK(window > 0 && chunk_bytes_max > 0, "a bulk scheduler needs a window");
  for (uint32_t slot = window; slot-- > 0;) free_slots_.push_back(slot);
}

void BulkScheduler::use_rails(Rails& rails) {
  if (rails_ != nullptr) return;
  rails_ = &rails;
  slots_.resize(size_t{window_} * (1 + kRailsMax));
  for (auto slot = static_cast<uint32_t>(slots_.size()); slot-- > window_;)
    free_slots_.insert(free_slots_.begin(), slot);
}

void BulkScheduler::start(uint64_t cookie, Opcode opcode, std::vector<TransferSegment> segments) {
  std::erase_if(segments, [](const TransferSegment& segment) { return segment.length_bytes == 0; });
  const auto [it, inserted] = transfers_.try_emplace(cookie);
  RRPC_CHECK(inserted, "transfer cookies are unique");
  it->second.opcode = opcode;
  it->second.segments = std::move(segments);
  if (it->second.all_posted())
    finish_if_ended(cookie);
  else
    turn_.push_back(cookie);
}

void BulkScheduler::stop(Transfer& transfer) {
  transfer.stopped = true;
  if (transfer.status == WcStatus::kSuccess) transfer.status = WcStatus::kFlushed;
}

void BulkScheduler::cancel(uint64_t cookie) {
  const auto it = transfers_.find(cookie);
  if (it == transfers_.end()) return;
  stop(it->second);
  std::erase(turn_, cookie);
  std::erase(landed_, cookie);
  finish_if_ended(cookie);
}

void BulkScheduler::cancel_all() {
  std::vector<uint64_t> cookies;
  for (const auto& [cookie, transfer] : transfers_) cookies.push_back(cookie);
  for (const uint64_t cookie : cookies) cancel(cookie);
}

Status BulkScheduler::pump(provider::QueuePair& qp, uint64_t wr_id_tag) {
  Status status;
  const size_t free_before = free_slots_.size();
  size_t blocked = 0;  // at the end of turn_, for whose next chunk there is no room
  while (blocked < turn_.size() && !free_slots_.empty()) {
    const uint64_t cookie = turn_.front();
    Transfer& transfer = transfers_.at(cookie);
    const size_t lane = rails_ == nullptr ? kOwn : choose_lane(transfer);
    if (lane == kNoLane) {
      ++blocked;
    } else {
      status = post_next(qp, wr_id_tag, cookie, transfer, lane);
      if (!status.ok()) break;
      blocked = 0;
    }
    turn_.pop_front();
    if (!transfer.all_posted()) turn_.push_back(cookie);
  }
  if (free_slots_.size() < free_before) {
    qp.ring();
    for (size_t i = 0; rails_ != nullptr && i < kRailsMax; ++i)
      if (rails_->carries(i)) rails_->queue_pair(i).ring();
  }
  // The send queue is full: at the next pump.
  return status.code() == StatusCode::kResourceExhausted ? Status() : status;
}

// With the fewest READs in flight: a slower one gets fewer of them.
size_t BulkScheduler::choose_lane(const Transfer& transfer) const {
  size_t best = own_in_flight_ < window_ ? kOwn : kNoLane;
  if (transfer.opcode != Opcode::kRead || !transfer.again.empty()) return best;
  uint32_t least = std::min(own_in_flight_, window_);
  const TransferSegment& segment = transfer.segments[transfer.next.segment_index];
  for (size_t i = 0; i < kRailsMax; ++i) {
    if (segment.rail_keys[i] == 0 || segment.seal != nullptr || !rails_->carries(i)) continue;
    const uint32_t in_flight = rails_->reads_in_flight(i);
    const uint32_t window = std::min(window_, rails_->queue_pair(i).limits().read_depth);
    if (in_flight >= std::min(least, window)) continue;
    best = 1 + i;
    least = in_flight;
  }
  return best;
}

Status BulkScheduler::post_next(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer,
                                size_t lane) {
  if (!transfer.again.empty()) return post_again(qp, wr_id_tag, cookie, transfer);
  if (lane != kOwn && post_by_rail(wr_id_tag, cookie, transfer, lane - 1)) return {};
  return lane == kOwn || own_in_flight_ < window_ ? post_chunk(qp, wr_id_tag, cookie, transfer) : Status();
}

// Makes sges_ the next chunk: as much of a segment as one work request takes, and for a WRITE what follows it in the
// peer's memory from other places in ours. Gives where the chunk after it begins.
BulkScheduler::Place BulkScheduler::gather_chunk(const Transfer& transfer, const provider::QueuePairLimits& limits) {
  const uint32_t sge_count_max = transfer.opcode == Opcode::kWrite ? limits.sge_count_max : 1;
  Place place = transfer.next;
  size_t left = chunk_bytes_max_;
  sges_.clear();
  do {
    const TransferSegment& segment = transfer.segments[place.segment_index];
    const size_t length = std::min(left, segment.length_bytes - place.offset_bytes);
    sges_.push_back({segment.local + place.offset_bytes, static_cast<uint32_t>(length), segment.region.get()});
    left -= length;
    place.offset_bytes += length;
    if (place.offset_bytes < segment.length_bytes) break;
    ++place.segment_index;
    place.offset_bytes = 0;
  } while (left > 0 && sges_.size() < sge_count_max && place.segment_index < transfer.segments.size() &&
           follows(transfer.segments[place.segment_index - 1], transfer.segments[place.segment_index]));
  return place;
}

// sges_, by that lane, with what lies at `place` in the peer's memory.
Status BulkScheduler::post(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer,
                           size_t lane, const Place& place, uint32_t rkey) {
  const uint32_t slot = free_slots_.back();
  provider::WorkRequest request;
  request.wr_id = wr_id_tag | slot;
  request.opcode = transfer.opcode;
  request.sges = sges_;
  request.remote_address = transfer.segments[place.segment_index].remote_address + place.offset_bytes;
  request.rkey = rkey;
  request.more = true;
  RRPC_RETURN_IF_ERROR(qp.post_send({&request, 1}));
  free_slots_.pop_back();
  slots_[slot] = {cookie, lane, {place, 0}};
  for (const provider::Sge& sge : sges_) slots_[slot].chunk.length_bytes += sge.length_bytes;
  ++transfer.in_flight;
  ++in_flight_by(lane);
  return {};
}

Status BulkScheduler::post_chunk(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer) {
  const Place next = gather_chunk(transfer, qp.limits());
  const uint32_t rkey = transfer.segments[transfer.next.segment_index].rkey;
  RRPC_RETURN_IF_ERROR(post(qp, wr_id_tag, cookie, transfer, kOwn, transfer.next, rkey));
  transfer.next = next;
  return {};
}

// False: that rail doesn't take what is left of this segment.
bool BulkScheduler::post_by_rail(uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer, size_t rail) {
  TransferSegment& segment = transfer.segments[transfer.next.segment_index];
  provider::QueuePair& qp = rails_->queue_pair(rail);
  const Place next = gather_chunk(transfer, qp.limits());
  const bool fits = sges_.front().length_bytes <= qp.limits().message_bytes_max;
  if (!fits || !qp.adopt(*segment.region).ok() ||
      !post(qp, wr_id_tag, cookie, transfer, 1 + rail, transfer.next, segment.rail_keys[rail]).ok()) {
    segment.rail_keys[rail] = 0;
    return false;
  }
  transfer.next = next;
  return true;
}

Status BulkScheduler::post_again(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer) {
  const auto& [place, length_bytes] = transfer.again.back();
  const TransferSegment& segment = transfer.segments[place.segment_index];
  sges_ = {{segment.local + place.offset_bytes, static_cast<uint32_t>(length_bytes), segment.region.get()}};
  RRPC_RETURN_IF_ERROR(post(qp, wr_id_tag, cookie, transfer, kOwn, place, segment.rkey));
  transfer.again.pop_back();
  return {};
}

// A READ that a rail has failed. False: nobody wants it any more.
bool BulkScheduler::leave_to_own(const Slot& failed, Transfer& transfer) {
  rails_->lose(failed.lane - 1, "a READ failed");
  if (transfer.stopped) return false;
  transfer.again.push_back(failed.chunk);
  if (std::ranges::find(turn_, failed.cookie) == turn_.end()) turn_.push_back(failed.cookie);
  return true;
}

void BulkScheduler::on_completion(uint32_t slot, WcStatus status) {
  const Slot done = std::exchange(slots_[slot], Slot());
  const auto& [cookie, lane, chunk] = done;
  free_slots_.push_back(slot);
  Transfer& transfer = transfers_.at(cookie);
  --transfer.in_flight;
  --in_flight_by(lane);
  ++transfer.chunks_done;
  if (lane != kOwn && status != WcStatus::kSuccess && leave_to_own(done, transfer)) return;
  if (lane != kOwn) transfer.bytes_by_rails += chunk.length_bytes;
  if (status == WcStatus::kSuccess && transfer.to_check()) {
    transfer.bytes_landed += chunk.length_bytes;
    if (transfer.is_worth_checking() && std::ranges::find(landed_, cookie) == landed_.end()) landed_.push_back(cookie);
  }
  if (status != WcStatus::kSuccess) {
    if (transfer.status == WcStatus::kSuccess) transfer.status = status;
    stop(transfer);
    std::erase(turn_, cookie);
    std::erase(landed_, cookie);
  }
  finish_if_ended(cookie);
}

void BulkScheduler::finish_if_ended(uint64_t cookie) {
  const auto it = transfers_.find(cookie);
  if (it->second.in_flight > 0 || !it->second.all_posted()) return;
  if (it->second.to_check()) return;
  if (it->second.refused) wipe(it->second);
  size_t length = 0;
  for (const TransferSegment& segment : it->second.segments) length += segment.length_bytes;
  finished_.push_back({cookie, it->second.status, it->second.opcode, length, it->second.bytes_by_rails});
  transfers_.erase(it);
}

size_t BulkScheduler::Transfer::pieces_landed() const {
  if (segments_checked == segments.size()) return 0;
  const TransferSegment& segment = segments[segments_checked];
  const size_t landed = bytes_landed - bytes_checked;
  if (landed >= segment.length_bytes) return segment.seal->tags.size() - pieces_checked;
  return static_cast<size_t>(landed / seal_piece_bytes(segment.length_bytes, segment.seal->pieces_max)) -
         pieces_checked;
}

bool BulkScheduler::Transfer::is_worth_checking() const {
  const size_t pieces = pieces_landed();
  if (pieces == 0) return false;
  if (in_flight == 0 && all_posted()) return true;
  const TransferSegment& segment = segments[segments_checked];
  return pieces * seal_piece_bytes(segment.length_bytes, segment.seal->pieces_max) >= kWorthCheckingBytes;
}

BulkScheduler::Landed BulkScheduler::first_landed() const {
  const Transfer& transfer = transfers_.at(landed_.front());
  return {transfer.segments[transfer.segments_checked], transfer.pieces_checked, transfer.pieces_landed()};
}

void BulkScheduler::first_landed_was_checked(size_t piece_count) {
  const uint64_t cookie = landed_.front();
  Transfer& transfer = transfers_.at(cookie);
  const TransferSegment& segment = transfer.segments[transfer.segments_checked];
  ++transfer.chunks_done;  // it isn't stalled
  transfer.pieces_checked += piece_count;
  if (transfer.pieces_checked == segment.seal->tags.size()) {
    transfer.bytes_checked += segment.length_bytes;
    transfer.pieces_checked = 0;
    ++transfer.segments_checked;
  }
  const bool more = transfer.pieces_landed() > 0;
  landed_.pop_front();
  if (more)
    landed_.push_back(cookie);  // a large one lets the others have their turn
  else
    finish_if_ended(cookie);
}

void BulkScheduler::wipe(const Transfer& transfer) {
  for (const TransferSegment& segment : transfer.segments)
    std::fill_n(segment.local, segment.length_bytes, std::byte{0});
}

// Twice: the call fails now, and what is on its way lands later.
void BulkScheduler::refuse_first_landed() {
  Transfer& transfer = transfers_.at(landed_.front());
  transfer.refused = true;
  wipe(transfer);
  cancel(landed_.front());
}

bool BulkScheduler::stalled(TimeNs now, TimeNs timeout) {
  bool any = false;
  for (auto& [cookie, transfer] : transfers_) {
    if (transfer.seen_at == kNever || transfer.chunks_seen != transfer.chunks_done) {
      transfer.seen_at = now;
      transfer.chunks_seen = transfer.chunks_done;
    }
    any = any || now - transfer.seen_at >= timeout;
    if (rails_ != nullptr && now - transfer.seen_at >= timeout / 2) lose_rails_of(cookie);
  }
  return any;
}

// Their READs are flushed then, and made again.
void BulkScheduler::lose_rails_of(uint64_t cookie) {
  for (const Slot& slot : slots_)
    if (slot.cookie == cookie && slot.lane != kNoLane && slot.lane != kOwn)
      rails_->lose(slot.lane - 1, "nothing comes by it");
}

std::vector<FinishedTransfer> BulkScheduler::take_finished() { return std::exchange(finished_, {}); }

}  // namespace rrpc::endpoint
