// How a queue pair dies: what the peer is told, and what its own requests complete with.
#include <algorithm>

#include "base/text.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

// Of what was queued when the queue pair died, so much is still delivered.
static constexpr size_t kUnsentBytesMax = 4 << 20;

static void append_frame(std::vector<std::byte>& out, FrameHeader header, std::string_view reason) {
  reason = cut_text(reason, kReasonBytesMax);
  header.length_bytes = static_cast<uint32_t>(reason.size());
  const HeaderBytes bytes = encode_header(header);
  out.insert(out.end(), bytes.begin(), bytes.end());
  const Bytes body = as_bytes(reason);
  out.insert(out.end(), body.begin(), body.end());
}

void TcpQueuePair::fail(Status status, Farewell farewell) {
  if (!live() || failing_) return;
  failing_ = true;
  error_ = std::move(status);
  if (socket_) {
    cq_.detach(this);
    if (farewell.kind != Farewell::Kind::kNone) say_farewell(farewell, phase_ == Phase::kUp);
    socket_.reset();
    tls_.reset();
  }
  phase_ = Phase::kDead;
  flush_posted();
}

void TcpQueuePair::fail_protocol(Status status) {
  fail(std::move(status), {.kind = phase_ == Phase::kUp ? Farewell::Kind::kGoodbye : Farewell::Kind::kQuiet});
}

void TcpQueuePair::refuse(const FrameHeader& header, WcStatus refusal, Status why) {
  fail(std::move(why), {.kind = Farewell::Kind::kNak, .refusal = refusal, .tag = header.tag});
}

void TcpQueuePair::say_farewell(const Farewell& farewell, bool was_up) {
  std::vector<std::byte> rest;
  if (write_errno_ != 0 || !collect_unsent(rest)) return;
  if (was_up && farewell.kind == Farewell::Kind::kGoodbye) {
    append_frame(rest, {.type = FrameType::kGoodbye}, error_.message());
  } else if (was_up && farewell.kind == Farewell::Kind::kNak) {
    append_frame(rest,
                 {.type = FrameType::kNak, .detail = static_cast<uint16_t>(farewell.refusal), .tag = farewell.tag},
                 error_.message());
  }
  if (tls_ != nullptr) rest = tls_->farewell(rest);
  cq_.linger(std::move(socket_), std::move(rest));
}

// False if a frame was begun and can't be finished, so that nothing may follow it.
bool TcpQueuePair::collect_unsent(std::vector<std::byte>& rest) {
  const Bytes staged = output_.take_staged();
  rest.insert(rest.end(), staged.begin(), staged.end());
  for (refill(); output_.has_frames(); refill()) {
    const OutFrame& frame = output_.front();
    const bool begun = frame.written_bytes > 0 && !frame.written();
    const bool revoked = frame.source == OutFrame::Source::kResponse && !exposures_.live(frame.rkey);
    const bool fits = frame.total_bytes - frame.written_bytes <= kUnsentBytesMax - rest.size();
    if (begun && (revoked || !fits)) return false;
    if (!fits) return true;
    if (!revoked) append_rest(frame, rest);
    output_.pop();
  }
  return true;
}

void TcpQueuePair::flush_posted() {
  while (!sends_.empty()) {
    SendRequest& request = sends_.front();
    complete_send(request, request.state == SendRequest::State::kDone ? WcStatus::kSuccess : request.failure);
    sends_.pop();
  }
  while (!receives_.empty()) complete_receive(WcStatus::kFlushed, 0);
}

void TcpQueuePair::disconnect(const std::string& reason) {
  fail(unavailable(reason), {.kind = Farewell::Kind::kGoodbye});
}

}  // namespace rrpc::provider::tcp
