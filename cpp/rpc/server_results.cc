// How a result goes out: its buffers exposed, or one of them written into the caller's memory; its message in a slot,
// or fetched too.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "endpoint/counters.h"
#include "rpc/client_side.h"
#include "rpc/server_side.h"

namespace rrpc::rpc {

Status ServerSide::why_unwanted(const ServerCall& call, TimeNs now) const {
  if (call.late_ || call.overdue_ || (!call.cancelled() && call.deadline_ <= now))
    return deadline_exceeded("the call's deadline passed while its handler ran");
  return call.cancelled() || endpoint_.failed() ? cancelled("nobody waits for the reply any more") : Status();
}

// As it is of no use, or could mislead.
void ServerSide::drop_unwanted(ServerCall& call, Reply& reply, TimeNs now) const {
  Status unwanted = why_unwanted(call, now);
  const bool gives_up = reply.status.ok() || reply.status.code() == StatusCode::kCancelled;
  if (call.outcome_.ok() && gives_up) call.outcome_ = unwanted;
  // Its handler may have been told to stop: this may be half a result, which a client that was held up would take
  // for all of it.
  if (unwanted.code() == StatusCode::kDeadlineExceeded && (call.overdue_ || reply.status.ok()))
    reply = Reply{.status = std::move(unwanted)};
}

// One with buffers, an error, or one that is too long or has no credit.
void ServerSide::reply_otherwise(const ServerCallRef& call, Reply& reply, TimeNs now) {
  if (!reply.status.ok()) reply.buffers.clear();
  if (reply.out_index >= reply.buffers.size()) reply.out_index = kNoOutIndex;
  if (reply.out_index != kNoOutIndex && start_out_write(call, reply)) return;
  std::string body;
  if (Status status = compose(*call, reply, false, body); !status.ok()) compose_error(*call, std::move(status), body);
  send_reply(call, std::move(body), now);
}

// In place of a result that can't be sent.
void ServerSide::compose_error(ServerCall& call, Status status, std::string& body) {
  release(call);
  call.outcome_ = status;
  Reply error;
  error.status = std::move(status);
  error.not_executed = call.refused_;
  body.clear();
  RRPC_CHECK(compose(call, error, false, body).ok(), "an error without buffers can be composed");
}

Status ServerSide::expose_results(ServerCall& call, Reply& reply, bool out_written,
                                  std::vector<endpoint::Descriptor>& descriptors) {
  size_t bytes = 0;
  for (const endpoint::Buffer& buffer : reply.buffers) bytes += buffer.length_bytes;
  RRPC_RETURN_IF_ERROR(charge_exposed(call, endpoint_.bytes_kept(bytes)));
  RRPC_RETURN_IF_ERROR(check_buffers(reply.buffers.size(), endpoint_.descriptors_max(), "the result"));
  RRPC_RETURN_IF_ERROR(fit_descriptors(endpoint_, reply.buffers));
  for (size_t i = 0; i < reply.buffers.size(); ++i) {
    if (out_written && i == reply.out_index) {
      descriptors.push_back({0, reply.buffers[i].length_bytes, 0});
      continue;
    }
    const size_t first = call.seldom_->exposures.size();
    RRPC_RETURN_IF_ERROR(
        call.seldom_.write().exposures.add(endpoint_, std::move(reply.buffers[i]), provider::kRemoteRead));
    for (size_t k = first; k < call.seldom_->exposures.size(); ++k)
      descriptors.push_back(call.seldom_->exposures.descriptor(k));
  }
  return {};
}

Status ServerSide::compose(ServerCall& call, Reply& reply, bool out_written, std::string& body) {
  RRPC_RETURN_IF_ERROR(check_message(reply.payload.size(), options_, "the reply"));
  std::vector<endpoint::Descriptor> descriptors;
  RRPC_RETURN_IF_ERROR(expose_results(call, reply, out_written, descriptors));
  ReplyFixed fixed;
  fixed.call_id = call.id_;
  fixed.status = static_cast<uint8_t>(reply.status.code());
  fixed.flags = static_cast<uint8_t>((out_written ? kOutWritten : 0) | (reply.not_executed ? kNotExecuted : 0));
  fixed.descriptor_count = static_cast<uint16_t>(descriptors.size());
  fixed.out_index = reply.out_index;
  fixed.metadata_bytes = static_cast<uint16_t>(reply.metadata.size());
  const std::string& message = reply.status.message();
  fixed.message_bytes = static_cast<uint32_t>(message.size());
  body.append(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  body += encode_descriptors(descriptors);
  body += message;
  body += as_text(reply.metadata);
  body += reply.status.ok() ? as_text(reply.payload) : reply.message_details;
  return {};
}

Status ServerSide::charge_exposed(ServerCall& call, size_t bytes) {
  if (bytes == 0 || call.seldom_.write().exposed.grow(shares_.exposed, bytes)) return {};
  return exposed_too_much(*shares_.exposed, "the server's results", bytes);
}

// The source's pieces go one behind the other.
Result<std::vector<endpoint::TransferSegment>> ServerSide::out_segments(const endpoint::Buffer& source,
                                                                        const provider::RemoteRange& out) {
  const MutableBytes whole(source.data, source.length_bytes);
  const std::span<const MutableBytes> pieces = source.pieces.empty() ? std::span(&whole, 1) : std::span(source.pieces);
  std::vector<endpoint::TransferSegment> segments;
  uint64_t target = out.address;
  for (const MutableBytes piece : pieces) {
    RRPC_ASSIGN_OR_RETURN(auto region, endpoint_.region_for(piece.data(), piece.size(), source.owner_id));
    segments.push_back({piece.data(), std::move(region), target, out.rkey, piece.size()});
    target += piece.size();
  }
  return segments;
}

// WRITEs the result into the caller's memory before the reply. False: it goes the ordinary way.
bool ServerSide::start_out_write(const ServerCallRef& call, Reply& reply) {
  if (call->out_bytes() == 0) return false;
  endpoint::Buffer& source = reply.buffers[reply.out_index];
  if (source.length_bytes != call->seldom_->out.length_bytes || source.length_bytes == 0) return false;
  auto segments = out_segments(source, call->seldom_->out);
  if (!segments.ok()) return false;
  call->seldom_.write().out_source = std::move(source);  // its length stays, for the descriptor
  std::string body;
  if (Status status = compose(*call, reply, true, body); !status.ok()) {
    release(*call);
    reply.status = call->outcome_ = std::move(status);
    reply.buffers.clear();
    reply.out_index = kNoOutIndex;
    call->seldom_.write().out_source = {};
    return false;
  }
  call->seldom_.write().pending_reply = std::move(body);
  call->state_ = ServerCall::State::kWriting;
  endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kWrite, std::move(*segments));
  return true;
}

// --- replies that the client leaves unread ---------------------------------------------------------------

// More than these, and its next calls wait. Enough of them to keep the path busy while handlers compute: a client that
// takes its replies doesn't see it.
constexpr size_t kUnreadResultsMax = 32;
constexpr size_t kUnreadResultsAnyway = 4;    // however large
constexpr size_t kUnreadBytesMax = 64 << 20;  // or half of what may be exposed
constexpr size_t kUnreadRepliesMax = 256;     // that wait for credits

// One part of the limits' `parts` is reached.
bool ServerSide::piles_up(size_t parts) const {
  if (queue_.size() * parts >= kUnreadRepliesMax || unread_ * parts >= kUnreadResultsMax) return true;
  if (unread_ < kUnreadResultsAnyway) return false;
  return unread_bytes_ >= std::min(kUnreadBytesMax, shares_.exposed->limit() / 2);
}

// A client's DONE wakes a server that sleeps only where a connection, or all of the process, kept more than this when
// it fell asleep, or than this part of a limit that the memory counts against: what was read long ago isn't to be what
// another call can't have.
constexpr size_t kKeptBytesMax = 64 << 20;
constexpr size_t kKeptShare = 8;
constexpr TimeNs kLookForDoneMax = 200 * kMillisecond;

bool ServerSide::awaits_done() const {
  if (unread_ == 0) return false;
  if (backed_up_ || !refusal_.ok() || piles_up(2)) return true;
  const size_t of_pool = endpoint_.pool_limit_bytes() / kKeptShare;
  const size_t of_all = std::min(shares_.exposed->budget_limit() / kKeptShare, of_pool);
  const size_t own = std::min({kKeptBytesMax, shares_.exposed->limit() / kKeptShare, of_pool});
  return unread_bytes_ > own || shares_.exposed->budget_held() > of_all;
}

TimeNs ServerSide::next_look_for_done() const { return awaits_done() ? kNever : look_for_done_at_; }

void ServerSide::looked_for_done(TimeNs now) {
  if (now < look_for_done_at_) return;
  look_for_done_after_ = std::min(2 * look_for_done_after_, kLookForDoneMax);
  look_for_done_at_ = now + look_for_done_after_;
}

void ServerSide::note_unread(ServerCall& call) {
  if (call.seldom_->exposures.empty()) return;
  call.unread_ = true;
  ++unread_;
  unread_bytes_ += call.seldom_->exposed.bytes();
}

void ServerSide::let_go_on() {
  // When the connection fails its replies go one by one, and the calls that wait behind them are to go, too.
  if (endpoint_.failed() || !backed_up_ || piles_up(2)) return;
  backed_up_ = false;
  events_.on_replies_taken();
}

void ServerSide::send_reply(const ServerCallRef& call, std::string body, TimeNs now) {
  uint8_t type = kReply;
  if (body.size() > endpoint_.body_bytes_max()) {
    Status status = charge_exposed(*call, call->seldom_->exposed.bytes() + endpoint_.bytes_kept(body.size()));
    auto block = endpoint_.allocate(status.ok() ? body.size() : 0, endpoint::BlockKind::kShared);
    if (status.ok()) status = block.status();
    if (status.ok()) {
      ByteWriter({block->data(), block->size()}).write_bytes(as_bytes(body));
      endpoint_.tally(&endpoint::Counters::copies);
      endpoint_.tally(&endpoint::Counters::bytes_copied, static_cast<int64_t>(body.size()));
      status = call->seldom_.write().exposures.add_block(endpoint_, std::move(*block));
    }
    if (!status.ok()) {
      compose_error(*call, std::move(status), body);
    } else {
      const endpoint::Descriptor& descriptor = call->seldom_->exposures.last();
      const BulkBody bulk{call->id_, descriptor.address, descriptor.length_bytes, descriptor.rkey, 0};
      body = encode_bulk(std::as_bytes(std::span(&bulk, 1)), descriptor);
      type = kReplyBulk;
    }
  }
  if (!shares_.queued.add(body.size())) {
    compose_error(*call, queue_is_full(), body);
    type = kReply;
    shares_.queued.add_anyway(body.size());
  }
  call->queued_bytes_ += body.size();
  call->state_ = ServerCall::State::kReplying;
  note_unread(*call);
  queue_.push_back({call, type, std::move(body)});
  flush(now);
  if (piles_up(1)) backed_up_ = true;
  if (!queue_.empty()) endpoint_.tally(&endpoint::Counters::credit_waits);  // this one, at the queue's end
}

}  // namespace rrpc::rpc
