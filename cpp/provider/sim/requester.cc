#include <algorithm>
#include <utility>

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

Status SimQueuePair::post_receive(const ReceiveRequest& request) {
  if (shared_receives_ != nullptr) return failed_precondition("this queue pair takes its receives from a shared queue");
  if (state_ == QueuePairState::kError) return error_;
  cq_.forget(number(), request.wr_id);
  if (held_receives_.size() >= limits_.receive_depth)
    return resource_exhausted("receive queue full: depth " + std::to_string(limits_.receive_depth));
  auto slot = std::make_shared<ReceiveSlot>();
  slot->wr_id = request.wr_id;
  slot->sge = request.sge;
  slot->local_fault = !claim(request.sge, slot->piece);
  slot->checksum = checksum_of(memory_of(fabric_, slot->piece));
  held_receives_.push_back(slot);
  open_receives_.push_back(std::move(slot));
  return {};
}

bool SimQueuePair::post_again(uint64_t wr_id) {
  const auto polled = polled_receives_.extract(wr_id);
  return !polled.empty() && post_receive({wr_id, polled.mapped()}).ok();
}

std::byte* SimQueuePair::reserve_message(uint32_t length_bytes) {
  const bool fits = length_bytes <= limits_.inline_bytes_max && held_sends_.size() < limits_.send_depth;
  if (!limits_.messages_complete || !fits || state_ != QueuePairState::kConnected) return nullptr;
  reserved_.assign(length_bytes, kScribble);
  return reserved_.data();
}

bool SimQueuePair::commit_message(bool more, uint64_t wr_id) {
  auto request = std::make_shared<SendRequest>();
  request->wr_id = wr_id;
  request->reserved = true;
  request->signalled = wr_id != kNoCompletion;
  request->length_bytes = static_cast<uint32_t>(reserved_.size());
  request->taken = true;
  request->copy = std::exchange(reserved_, {});
  enqueue(std::move(request));
  holds_ = more;
  if (!more) launch_ready();
  return more;
}

Status SimQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (state_ == QueuePairState::kError) return error_;
  if (state_ != QueuePairState::kConnected) return failed_precondition("the queue pair is not connected yet");
  for (const WorkRequest& request : requests) {
    if (Status status = check_request(request); !status.ok()) {
      violation(status.message());
      return status;
    }
  }
  if (held_sends_.size() + requests.size() > limits_.send_depth)
    return resource_exhausted("send queue full: depth " + std::to_string(limits_.send_depth));
  for (const WorkRequest& request : requests) post_one(request);
  launch_ready();
  return {};
}

static uint64_t length_of(const WorkRequest& request) {
  uint64_t length_bytes = 0;
  for (const Sge& sge : request.sges) length_bytes += sge.length_bytes;
  return length_bytes;
}

Status SimQueuePair::check_request(const WorkRequest& request) const {
  RRPC_CHECK(request.opcode != Opcode::kReceive, "receives are posted by post_receive");
  const bool is_read = request.opcode == Opcode::kRead;
  if (request.sges.size() > (is_read ? limits_.read_sge_count_max : limits_.sge_count_max))
    return invalid_argument("more scatter/gather elements than the limit");
  if (request.invalidate_rkey != 0 && (request.opcode != Opcode::kSend || !limits_.invalidates))
    return invalid_argument("only a send closes a key, and only where the limits say so");
  if (length_of(request) > limits_.message_bytes_max) return invalid_argument("longer than the limit of one message");
  if (!request.inline_data) return {};
  if (request.opcode != Opcode::kSend) return invalid_argument("only a send may be inline");
  if (length_of(request) > limits_.inline_bytes_max) return invalid_argument("longer than the limit of inline data");
  return {};
}

void SimQueuePair::post_one(const WorkRequest& posted) {
  auto request = std::make_shared<SendRequest>();
  request->wr_id = posted.wr_id;
  request->opcode = posted.opcode;
  request->signalled = posted.signalled;
  request->remote_address = posted.remote_address;
  request->rkey = posted.rkey;
  request->invalidate_rkey = posted.invalidate_rkey;
  request->length_bytes = static_cast<uint32_t>(length_of(posted));
  request->taken = posted.inline_data;
  for (const Sge& sge : posted.sges) {
    if (posted.inline_data)
      request->copy.insert(request->copy.end(), sge.address, sge.address + sge.length_bytes);
    else
      request->local_fault |= !claim(sge, request->pieces.emplace_back());
  }
  check_sinks(*request);
  enqueue(std::move(request));
}

void SimQueuePair::enqueue(SendRequestPtr request) {
  request->sequence = ++last_sequence_;
  request->checksum = source_checksum(fabric_, *request);
  held_sends_.push_back(request);
  pending_sends_.push_back(request);
  waiting_sends_.push_back(std::move(request));
}

// An iWARP adapter's rule: the sink of a READ is open to the peer's writing, so it is memory registered for that alone.
void SimQueuePair::check_sinks(SendRequest& request) {
  for (const Piece& piece : request.pieces) {
    const RegionRecord* region = fabric_.regions.find(piece.lkey);
    if (region == nullptr) continue;
    const bool is_read = request.opcode == Opcode::kRead;
    if (region->range.read_sink && !is_read) violation("posted the sink of a READ for something else");
    if (is_read && limits_.dedicated_read_sinks && !region->range.read_sink) {
      violation("posted a READ into memory that was not registered as its sink");
      request.local_fault = true;
    }
  }
}

void SimQueuePair::launch_ready() {
  holds_ = false;
  while (!waiting_sends_.empty() && !launch_stopped_) {
    const SendRequestPtr request = waiting_sends_.front();
    if (request->opcode == Opcode::kRead && reads_in_flight_count_ >= limits_.read_depth) return;
    waiting_sends_.pop_front();
    if (request->local_fault) return finish(request, WcStatus::kLocalProtection);
    launch(request);
  }
}

void SimQueuePair::launch(const SendRequestPtr& request) {
  fabric_.trace(number(), "launches", request->wr_id);
  request->launched = true;
  expire_later(request);
  if (request->opcode == Opcode::kRead) return launch_read(request);
  const bool is_write = request->opcode == Opcode::kWrite;
  out_->send([request, is_write](SimQueuePair& peer) { is_write ? peer.on_write(request) : peer.on_send(request); });
}

void SimQueuePair::launch_read(const SendRequestPtr& request) {
  ++reads_in_flight_count_;
  if (fabric_.plan.scribble)
    for (const Piece& piece : request->pieces) scribble(memory_of(fabric_, piece));
  out_->send([request](SimQueuePair& peer) { peer.on_read(request); });
}

void SimQueuePair::expire_later(const SendRequestPtr& request) {
  if (fabric_.plan.retry_timeout_ns == kNever) return;
  fabric_.events.after(fabric_.plan.retry_timeout_ns, [&fabric = fabric_, number = number(), request] {
    if (SimQueuePair* self = fabric.queue_pair(number)) self->on_answer(request, WcStatus::kRetryExceeded);
  });
}

void SimQueuePair::on_answer(const SendRequestPtr& request, WcStatus status) {
  if (state_ == QueuePairState::kConnected && !request->finished) finish(request, status);
}

void SimQueuePair::on_read_piece(const SendRequestPtr& request, size_t offset_bytes, Bytes bytes,
                                 uint32_t piece_count) {
  if (state_ != QueuePairState::kConnected || request->finished) return;
  if (!scatter(fabric_, *request, offset_bytes, bytes)) return finish(request, WcStatus::kLocalProtection);
  fabric_.trace(number(), "read piece lands at " + std::to_string(offset_bytes), request->wr_id);
  if (++request->pieces_landed_count == piece_count) finish(request, WcStatus::kSuccess);
}

void SimQueuePair::finish(const SendRequestPtr& request, WcStatus status) {
  request->finished = true;
  request->status = status;
  if (request->opcode == Opcode::kRead && !request->local_fault) --reads_in_flight_count_;
  launch_stopped_ |= status != WcStatus::kSuccess;
  retire();
  launch_ready();
}

// Requests end in the order posted, whatever order their answers came in.
void SimQueuePair::retire() {
  while (!pending_sends_.empty() && pending_sends_.front()->finished) {
    const SendRequestPtr request = pending_sends_.front();
    if (request->status != WcStatus::kSuccess) {
      const auto code = request->status == WcStatus::kRetryExceeded ? StatusCode::kUnavailable : StatusCode::kInternal;
      return close_down({code, "request failed: " + std::string(wc_status_name(request->status))});
    }
    if (request->signalled) complete_send(request);
    pending_sends_.pop_front();
  }
}

}  // namespace rrpc::provider::sim
