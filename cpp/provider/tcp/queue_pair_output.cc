// From the queues into the socket.
#include <cstring>

#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

static constexpr size_t kWriteBytesPerPoll = 2 << 20;
// No more than this is put in line ahead of what may be posted next.
static constexpr uint64_t kRefillBytes = 1 << 20;
// Longer ones are sent from where they are.
static constexpr uint32_t kStagedMessageBytesMax = 2 << 10;
// So many wait for each other: more would save little, and keep the peer waiting for work.
static constexpr uint32_t kHeldMax = 16;

// --- messages that are written into the output directly ----------------------------------------------

// A message that is staged goes out before all frames, so there must be none, nor anything that is to become one.
bool TcpQueuePair::may_stage() const {
  return phase_ == Phase::kUp && !want_write_ && write_errno_ == 0 && !output_.has_frames() && !sends_.has_unwritten();
}

std::byte* TcpQueuePair::reserve_message(uint32_t length_bytes) {
  if (length_bytes > kStagedMessageBytesMax || !may_stage()) return nullptr;
  std::byte* place = output_.stage(kFrameHeaderBytes + length_bytes);
  if (place == nullptr) {
    flush_output();
    if (!may_stage()) return nullptr;
    place = output_.stage(kFrameHeaderBytes + length_bytes);
    if (place == nullptr) return nullptr;
  }
  reserved_bytes_ = length_bytes;
  // Nothing posted has this tag: should the peer refuse the message, no completion is to tell of it.
  const auto tag = static_cast<uint32_t>(sends_.first_sequence() - 1);
  const HeaderBytes header = encode_header({.type = FrameType::kSend, .length_bytes = length_bytes, .tag = tag});
  std::memcpy(place, header.data(), header.size());
  return place + header.size();
}

bool TcpQueuePair::commit_message(bool more, uint64_t /*wr_id*/) {
  output_.staged(kFrameHeaderBytes + reserved_bytes_);
  if (more && ++held_ < kHeldMax) return true;
  flush_output();
  return false;
}

void TcpQueuePair::ring() {
  if (held_ > 0 && live()) flush_output();
}

// --- the queues ----------------------------------------------------------------------------------------

void TcpQueuePair::flush_output() {
  held_ = 0;
  if (write_errno_ != 0) return;
  size_t budget_bytes = kWriteBytesPerPoll;
  while (true) {
    refill();
    if (!live()) return;
    if (output_.empty() && !wire().has_output()) return set_want_write(false);
    if (budget_bytes == 0) return set_want_write(true);
    const WriteOutcome outcome = output_.write_some(wire(), budget_bytes);
    retire_written();
    budget_bytes -= outcome.written_bytes;
    if (outcome.written_bytes >= kBulkBytesMin) cq_.note_moved_bytes();
    if (outcome.error_number != 0) {
      // What the peer said before it went is still to be read; the end of the input will end the queue pair.
      write_errno_ = outcome.error_number;
      return set_want_write(false);
    }
    if (outcome.blocked) return set_want_write(true);
  }
}

// The peer's READs and this side's requests take turns, so that neither waits for all of the other.
void TcpQueuePair::refill() {
  if (phase_ != Phase::kUp) return;
  while (!output_.full() && output_.pending_bytes() < kRefillBytes) {
    if (acks_pending_ > 0) {
      output_.push_control({.type = FrameType::kWriteAck, .tag = acks_pending_}, {});
      acks_pending_ = 0;
      continue;
    }
    if (ask_for_held()) continue;
    const bool pushed = response_turn_ ? push_response() || push_request() : push_request() || push_response();
    if (!pushed) return;
    response_turn_ = !response_turn_;
  }
}

static FrameType frame_type_for(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead:
      return FrameType::kReadRequest;
    case Opcode::kWrite:
      return FrameType::kWrite;
    default:
      return FrameType::kSend;
  }
}

bool TcpQueuePair::push_request() {
  SendRequest* request = sends_.next_to_write();
  if (request == nullptr) return false;
  if (request->failure == WcStatus::kLocalProtection) {
    fail(internal_error("a posted request names memory outside its region"), {.kind = Farewell::Kind::kGoodbye});
    return false;
  }
  const uint64_t sequence = sends_.next_to_write_sequence();
  std::span<const iovec> parts = request->part_span();
  std::span<const RemoteRange> pushes;
  if (request->opcode == Opcode::kRead && may_be_pushed(*request)) {
    request->state = SendRequest::State::kWaiting;
    reads_held_.push_back(sequence);
    sends_.advance();
    return true;
  }
  if (request->opcode == Opcode::kRead) {
    parts = {};
    if (reads_in_flight_.size() >= reads_in_flight_max_) return false;
    reads_in_flight_.push(sequence);
  } else if (request->opcode == Opcode::kWrite) {
    writes_in_flight_.push(sequence);
  } else {
    pushes = sends_.pushes().first(pushes_for(sends_.pushes()));
  }
  write_request(*request, sequence, parts, pushes.size());
  push_ranges(pushes);
  sends_.advance();
  return true;
}

void TcpQueuePair::write_request(SendRequest& request, uint64_t sequence, std::span<const iovec> parts, size_t pushes) {
  request.state = SendRequest::State::kWriting;
  output_.push_request({.type = frame_type_for(request.opcode),
                        .detail = static_cast<uint16_t>(pushes),
                        .rkey = request.rkey,
                        .address = request.remote_address,
                        .length_bytes = request.length_bytes,
                        .tag = static_cast<uint32_t>(sequence)},
                       parts, sequence);
}

bool TcpQueuePair::push_response() {
  if (responses_.empty()) return false;
  const PendingResponse response = responses_.front();
  responses_.pop();
  output_.push_exposed(OutFrame::Source::kResponse,
                       {.type = FrameType::kReadResponse, .length_bytes = response.length_bytes, .tag = response.tag},
                       response.address, response.rkey);
  return true;
}

void TcpQueuePair::push_setup() {
  std::vector<std::byte> body = encode_setup_body({.read_depth = limits_.read_depth, .private_data = private_data_});
  const auto length_bytes = static_cast<uint32_t>(body.size());
  output_.push_control(
      {.type = FrameType::kSetup, .detail = kProtocolVersion, .length_bytes = length_bytes, .tag = kTakesPushes},
      std::move(body));
}

void TcpQueuePair::retire_written() {
  while (output_.has_frames() && output_.front().written()) {
    const OutFrame& frame = output_.front();
    if (frame.source == OutFrame::Source::kRequest) {
      SendRequest& request = sends_.at(frame.sequence);
      request.state = request.opcode == Opcode::kSend ? SendRequest::State::kDone : SendRequest::State::kWaiting;
    }
    output_.pop();
  }
  complete_done();
}

}  // namespace rrpc::provider::tcp
