// From the socket into posted receives, read destinations and exposed memory. Nothing here trusts the peer.
#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

static constexpr size_t kReadBytesPerPoll = 2 << 20;

void TcpQueuePair::read_input() {
  for (size_t total_bytes = 0; live() && total_bytes < kReadBytesPerPoll;) {
    const bool in_payload = input_.landing_bytes() > 0;
    if (cq_.has_ready()) cq_.settle(this);
    const ReadOutcome outcome = input_.read_some(wire(), bulk_expected());
    if (outcome.read_bytes == 0) return end_of_input(outcome);
    if (in_payload || outcome.read_bytes >= kBulkBytesMin) cq_.note_moved_bytes();
    total_bytes += outcome.cost_bytes;
    parse_input();
    if (push_.waits) return;
    // Nobody looks again soon after a poll that found nothing: its end may have come with the rest.
    if (!outcome.more_likely && cq_.has_ready()) return;
  }
  if (live() && wire().has_input()) cq_.note_moved_bytes();  // of which the socket tells nobody
}

void TcpQueuePair::end_of_input(const ReadOutcome& outcome) {
  if (outcome.error_number == EAGAIN || outcome.error_number == EWOULDBLOCK) return;
  if (tls_ != nullptr && !tls_->error().ok()) return fail(tls_->error(), {.kind = Farewell::Kind::kQuiet});
  if (phase_ == Phase::kSettingUp && outcome.end_of_stream && (frame_open_ || !input_.buffered().empty())) {
    return fail(Status::protocol_error("the peer closed the connection in the middle of its first frame"), {});
  }
  if (frame_open_) {
    const uint64_t missing = input_.landing_bytes();
    return fail(unavailable("peer closed the connection in the middle of a " +
                            std::string(frame_type_name(frame_.type)) + " frame (" + std::to_string(missing) + " of " +
                            std::to_string(frame_.length_bytes) + " bytes missing)"),
                {});
  }
  if (!input_.buffered().empty()) {
    return fail(unavailable("peer closed the connection in the middle of a frame header"), {});
  }
  if (outcome.end_of_stream) return fail(unavailable("peer closed the connection"), {});
  const Status status = Status::from_errno(outcome.error_number, "peer lost");
  fail(unavailable(status.message()), {});
}

bool TcpQueuePair::bulk_expected() {
  return !reads_in_flight_.empty() && sends_.at(reads_in_flight_.front()).length_bytes >= kBulkBytesMin;
}

void TcpQueuePair::parse_input() {
  while (live()) {
    if (!frame_open_ && !begin_next_frame()) return;
    if (!live() || !input_.land_buffered()) return;
    if (pushing() && !continue_push()) {
      if (push_.waits) return;
      continue;
    }
    frame_open_ = false;
    finish_frame();
  }
}

// True if a header was there and its frame is open.
bool TcpQueuePair::begin_next_frame() {
  const Bytes buffered = input_.buffered();
  if (buffered.empty()) return false;
  if (Status status = check_magic(buffered, phase_ == Phase::kSettingUp); !status.ok()) {
    // By which a TLS client sees what it has met.
    if (!client_ && phase_ == Phase::kSettingUp && static_cast<uint8_t>(buffered[0]) == kTlsHandshake) push_setup();
    fail_protocol(std::move(status));
    return false;
  }
  if (buffered.size() < kFrameHeaderBytes) return false;
  Result<FrameHeader> header = decode_header(buffered.first(kFrameHeaderBytes));
  if (!header) {
    fail_protocol(header.status());
    return false;
  }
  input_.consume(kFrameHeaderBytes);
  frame_ = *header;
  frame_open_ = true;
  begin_frame();
  return live();
}

void TcpQueuePair::begin_frame() {
  input_.land({}, 0);
  if ((frame_.type == FrameType::kSetup) != (phase_ == Phase::kSettingUp)) {
    const std::string name(frame_type_name(frame_.type));
    return fail_protocol(
        Status::protocol_error(phase_ == Phase::kUp ? "a second SETUP frame" : "a " + name + " frame before SETUP"));
  }
  const bool ends = frame_.type == FrameType::kNak || frame_.type == FrameType::kGoodbye;
  if (pushes_due_ > 0 && frame_.type != FrameType::kPush && !ends) {
    return fail_protocol(Status::protocol_error("a " + std::string(frame_type_name(frame_.type)) +
                                                " frame where a SEND had announced PUSH frames"));
  }
  switch (frame_.type) {
    case FrameType::kSetup:
      return begin_setup();
    case FrameType::kSend:
      return begin_send();
    case FrameType::kReadRequest:
      return begin_read_request();
    case FrameType::kReadResponse:
      return begin_read_response();
    case FrameType::kWrite:
      return begin_write();
    case FrameType::kWriteAck:
      return;
    case FrameType::kNak:
    case FrameType::kGoodbye:
      return land_control();
    case FrameType::kPush:
      return begin_push();
  }
}

void TcpQueuePair::begin_setup() {
  if (frame_.detail == kProtocolVersion) return land_control();
  if (!client_) push_setup();  // so that the client can name both versions too
  fail_protocol(Status::protocol_error("the peer speaks version " + std::to_string(frame_.detail) +
                                       " of the tcp protocol, this side version " + std::to_string(kProtocolVersion) +
                                       ": use the same rrpc release on both sides"));
}

void TcpQueuePair::land_control() {
  const iovec part{control_body_.data(), control_body_.size()};
  input_.land({&part, 1}, frame_.length_bytes);
}

void TcpQueuePair::begin_send() {
  if (frame_.detail > kPushesMax) {
    return fail_protocol(
        Status::protocol_error("a SEND that announces " + std::to_string(frame_.detail) + " PUSH frames"));
  }
  if (receives_.empty()) {
    return refuse(frame_, WcStatus::kRnrRetryExceeded,
                  failed_precondition("receiver not ready: a SEND came and no receive was posted"));
  }
  const Sge& sge = receives_.front().sge;
  if (frame_.length_bytes > sge.length_bytes) {
    complete_receive(WcStatus::kLocalLength, 0);
    return refuse(frame_, WcStatus::kRemoteOperation,
                  failed_precondition("a SEND of " + std::to_string(frame_.length_bytes) +
                                      " bytes is longer than the receive posted for it"));
  }
  if (sge.region == nullptr || !sge.region->contains(sge.address, sge.length_bytes)) {
    complete_receive(WcStatus::kLocalProtection, 0);
    return refuse(frame_, WcStatus::kRemoteOperation,
                  internal_error("a posted receive names memory outside its region"));
  }
  // Taken as it lies in the buffer, if it is all there: most are.
  if (const Bytes buffered = input_.buffered(); buffered.size() >= frame_.length_bytes) {
    place_ = buffered.data();
    return input_.consume(frame_.length_bytes);
  }
  const iovec part{sge.address, sge.length_bytes};
  input_.land({&part, 1}, frame_.length_bytes);
}

void TcpQueuePair::begin_read_request() {
  Result<std::byte*> source = exposures_.check(frame_.rkey, frame_.address, frame_.length_bytes, kRemoteRead);
  if (!source) return refuse(frame_, WcStatus::kRemoteAccess, source.status());
  if (responses_.full()) {
    return fail_protocol(Status::protocol_error("more READs in flight than the " +
                                                std::to_string(responses_.capacity()) + " agreed on"));
  }
  note_asked_for(frame_.rkey);
  responses_.push({.tag = frame_.tag, .rkey = frame_.rkey, .length_bytes = frame_.length_bytes, .address = *source});
}

void TcpQueuePair::begin_read_response() {
  if (reads_in_flight_.empty()) return fail_protocol(Status::protocol_error("a READ_RESPONSE to no READ"));
  const uint64_t sequence = reads_in_flight_.front();
  SendRequest& request = sends_.at(sequence);
  if (request.state != SendRequest::State::kWaiting || frame_.tag != static_cast<uint32_t>(sequence)) {
    return fail_protocol(Status::protocol_error("a READ_RESPONSE to another READ than the oldest"));
  }
  if (frame_.length_bytes != request.length_bytes) {
    return fail_protocol(Status::protocol_error("a READ_RESPONSE of " + std::to_string(frame_.length_bytes) +
                                                " bytes to a READ of " + std::to_string(request.length_bytes)));
  }
  input_.land(request.part_span(), frame_.length_bytes);
}

void TcpQueuePair::begin_write() {
  Result<std::byte*> target = exposures_.check(frame_.rkey, frame_.address, frame_.length_bytes, kRemoteWrite);
  if (!target) return refuse(frame_, WcStatus::kRemoteAccess, target.status());
  const iovec part{*target, frame_.length_bytes};
  input_.land({&part, 1}, frame_.length_bytes);
}

void TcpQueuePair::finish_frame() {
  switch (frame_.type) {
    case FrameType::kSetup:
      return finish_setup();
    case FrameType::kSend:
      pushes_due_ = frame_.detail;
      push_room_bytes_ = kPushedBytesMax;
      news_in_this_poll_ = true;
      return complete_receive(WcStatus::kSuccess, frame_.length_bytes);
    case FrameType::kReadRequest:
    case FrameType::kPush:
      return;
    case FrameType::kReadResponse:
      sends_.at(reads_in_flight_.front()).state = SendRequest::State::kDone;
      reads_in_flight_.pop();
      return complete_done();
    case FrameType::kWrite:
      ++acks_pending_;
      return;
    case FrameType::kWriteAck:
      return finish_write_ack();
    case FrameType::kNak:
      return finish_nak();
    case FrameType::kGoodbye:
      return fail(unavailable("peer closed the connection: " + reason_given()), {});
  }
}

std::string TcpQueuePair::reason_given() const {
  return one_line(as_text(Bytes(control_body_).first(frame_.length_bytes)));
}

void TcpQueuePair::finish_setup() {
  Result<Setup> setup = decode_setup_body(Bytes(control_body_).first(frame_.length_bytes));
  if (!setup) return fail_protocol(setup.status());
  peer_private_data_.assign(setup->private_data.begin(), setup->private_data.end());
  if ((frame_.tag & kTakesPushes) != 0) limits_.pushed_bytes_max = kPushedBytesMax;
  limits_.read_depth = reads_in_flight_max_ = std::min(limits_.read_depth, setup->read_depth);
  if (!client_) push_setup();
  phase_ = Phase::kUp;
}

void TcpQueuePair::finish_write_ack() {
  for (uint32_t i = 0; i < frame_.tag; ++i) {
    if (writes_in_flight_.empty() || sends_.at(writes_in_flight_.front()).state != SendRequest::State::kWaiting) {
      return fail_protocol(Status::protocol_error("a WRITE_ACK for more WRITEs than were sent"));
    }
    sends_.at(writes_in_flight_.front()).state = SendRequest::State::kDone;
    writes_in_flight_.pop();
  }
  complete_done();
}

void TcpQueuePair::finish_nak() {
  const auto refusal = static_cast<WcStatus>(frame_.detail);
  if (frame_.detail != static_cast<uint16_t>(refusal) ||
      (refusal != WcStatus::kRnrRetryExceeded && refusal != WcStatus::kRemoteAccess &&
       refusal != WcStatus::kRemoteOperation)) {
    return fail_protocol(Status::protocol_error("a NAK of unknown kind " + std::to_string(frame_.detail)));
  }
  if (SendRequest* request = sends_.find_tag(frame_.tag)) {
    request->state = SendRequest::State::kWaiting;
    request->failure = refusal;
  }
  const StatusCode code =
      refusal == WcStatus::kRemoteAccess ? StatusCode::kPermissionDenied : StatusCode::kFailedPrecondition;
  fail(Status(code, "refused by the peer: " + reason_given()), {});
}

}  // namespace rrpc::provider::tcp
