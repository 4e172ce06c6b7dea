// How a result comes, its message in a slot or fetched, its buffers into pool memory or the caller's own; and how a
// call ends of it.
#include <utility>

#include "base/check.h"
#include "rpc/client_side.h"

namespace rrpc::rpc {
namespace {

using provider::WcStatus;

[[gnu::cold]] Status unasked_reply(uint64_t call_id) {
  return Status::protocol_error("a reply to call " + std::to_string(call_id) + ", which is not under way");
}
[[gnu::cold]] Status second_reply(uint64_t call_id) {
  return Status::protocol_error("a second reply to call " + std::to_string(call_id));
}

// A deadline is named as this end names it, whichever end sees it first.
Status status_of(const ClientCall& call, const ParsedReply& reply) {
  const auto code = static_cast<StatusCode>(reply.fixed.status);
  const bool waited = code == StatusCode::kDeadlineExceeded && (reply.fixed.flags & kNotExecuted) != 0;
  if (!waited || call.deadline() == kNever) return {code, std::string(reply.message)};
  return {code, call.deadline_passed().message() + ": " + std::string(reply.message)};
}

}  // namespace

void ClientSide::finish(const ClientCallRef& call, Status status) {
  if (call->done()) return;
  call->stamps.mark(&CallStamps::fetched);
  call->status_ = std::move(status);
  endpoint_.tally(&endpoint::Counters::calls_ended);
  call->done_.store(true, std::memory_order_release);
  if (call->stream_ != nullptr) streams_.end(call->stream_, call->status_);
  events_.on_call_done(call);
}

// With a status of this end's. What its reply said, which had come before its items, isn't to be taken for this one's.
void ClientSide::finish_without_reply(const ClientCallRef& call, Status why) {
  if (call->done()) return;
  if (ClientCall::SeldomUsed* const used = call->seldom_.written()) {
    used->details.clear();
    used->metadata.clear();
  }
  finish(call, std::move(why));
}

Status ClientSide::accept_reply(const ClientCallRef& call, Bytes body) {
  ParsedReply reply;
  RRPC_RETURN_IF_ERROR(parse_reply(body, reply, endpoint_.seals()));
  if (reply.fixed.call_id != call->id_) return Status::protocol_error("a fetched reply of another call");
  RRPC_RETURN_IF_ERROR(check_descriptors(reply.fixed.descriptor_count, options_));
  call->leased_ = call->leased_ || reply.fixed.descriptor_count > (reply.out_written() ? 1 : 0);
  release(call);
  if (call->state_ == ClientCall::State::kCancelling) return leave(call), Status();
  Status fits = check_metadata(reply.metadata.size(), options_, "the reply");
  if (fits.ok() && reply.fixed.status == 0) fits = check_message(reply.payload.size(), options_, "the reply");
  if (!fits.ok()) return give_up(call, fits), Status();
  if (!reply.metadata.empty()) call->seldom_.write().metadata = as_text(reply.metadata);
  if (reply.fixed.status != 0) {
    if ((reply.fixed.flags & kNotExecuted) != 0) call->may_have_run_ = false;
    call->seldom_.write().details = as_text(reply.payload);
    complete(call, status_of(*call, reply));
    return {};
  }
  if (call->seldom_->body_block)
    call->seldom_.write().block_payload = reply.payload;  // stays where it was fetched to
  else
    call->payload_.assign(reply.payload);
  if (reply.fixed.descriptor_count > 0) return fetch(call, reply);
  complete(call, {});
  return {};
}

// What answers most calls: a result of a few bytes, and nothing that was exposed. False: it is another reply, or a
// wrong one, and nothing was done.
inline bool ClientSide::take_small_result(Bytes body) {
  ReplyFixed fixed;
  if (body.size() < sizeof(fixed)) return false;
  std::memcpy(&fixed, body.data(), sizeof(fixed));
  const Bytes payload = body.subspan(sizeof(fixed));
  if (!fixed.is_bare_success() || payload.size() > options_.message_bytes_max) return false;
  const size_t place = calls_.place_of(fixed.call_id);
  if (place == calls_.kNowhere || !calls_.at(place)->is_small()) return false;
  ClientCall& call = *calls_.at(place);
  call.payload_.assign(payload);  // without memory for it the call is still in the table, and ends with the connection
  const ClientCallRef taken = calls_.take(place);
  in_flight_.store(calls_.size(), std::memory_order_relaxed);
  call.stamps.mark(&CallStamps::replied);
  call.stamps.mark(&CallStamps::fetched);
  call.state_ = ClientCall::State::kEnded;
  endpoint_.tally(&endpoint::Counters::calls_ended);
  call.done_.store(true, std::memory_order_release);
  events_.on_call_done(taken);
  return true;
}

Status ClientSide::on_reply(Bytes body) {
  if (take_small_result(body)) return {};
  ByteReader reader(body);
  const auto call_id = reader.read<uint64_t>();
  const ClientCallRef call = find(call_id);
  if (call == nullptr || call->state_ == ClientCall::State::kQueued) return unasked_reply(call_id);
  if (call->state_ != ClientCall::State::kSent && call->state_ != ClientCall::State::kCancelling)
    return second_reply(call_id);
  call->stamps.mark(&CallStamps::replied);
  return accept_reply(call, body);
}

// Where the result goes into the caller's memory. The caller's own faults are errors of the call, not of the peer.
Status ClientSide::prepare_out(const ClientCall& call, const ParsedReply& reply, OutTarget& out) {
  const size_t result_bytes = total_bytes(buffer_at(reply.descriptors, reply.fixed.out_index));
  const endpoint::Buffer& target = call.seldom_->out;
  if (target.data == nullptr || (reply.out_written() && !call.out_offered_))
    return Status::protocol_error("a reply for out= memory that was not offered");
  if (target.length_bytes != result_bytes) {
    const std::string text = "a result of " + std::to_string(result_bytes) + " bytes for out= memory of " +
                             std::to_string(target.length_bytes);
    return reply.out_written() ? Status::protocol_error(text) : invalid_argument(text);
  }
  out = {reply.fixed.out_index, target.data, target.length_bytes, nullptr};
  if (reply.out_written() || out.length_bytes == 0) return {};
  RRPC_ASSIGN_OR_RETURN(out.region, endpoint_.sink_region_for(out.data, out.length_bytes, target.owner_id));
  return {};
}

Status ClientSide::fetch(const ClientCallRef& call, const ParsedReply& reply) {
  OutTarget out;
  const bool uses_out = reply.fixed.out_index != kNoOutIndex;
  if (uses_out) {
    if (Status status = prepare_out(*call, reply, out); !status.ok()) {
      if (!status.is_protocol_error()) give_up(call, status);
      return status.is_protocol_error() ? status : Status();
    }
  }
  if (borrow_lent(endpoint_, reply.descriptors, call->blocks_, uses_out ? out.index : SIZE_MAX))
    return complete(call, {}), Status();
  auto segments = prepare_landing(endpoint_, reply.descriptors, {&out, uses_out ? 1u : 0u}, call->blocks_);
  if (!segments.ok()) {
    give_up(call, segments.status());
    return {};
  }
  call->state_ = ClientCall::State::kFetching;
  call->transferring_ = true;
  endpoint_.start_transfer(call->id_, provider::Opcode::kRead, std::move(*segments));
  return {};
}

Status ClientSide::on_reply_bulk(Bytes body) {
  RRPC_ASSIGN_OR_RETURN(const ParsedBulk bulk, parse_bulk(body, endpoint_.seals()));
  const ClientCallRef call = find(bulk.call_id);
  if (call == nullptr || (call->state_ != ClientCall::State::kSent && call->state_ != ClientCall::State::kCancelling))
    return unasked_reply(bulk.call_id);
  call->stamps.mark(&CallStamps::replied);
  call->leased_ = true;
  release(call);
  if (call->state_ == ClientCall::State::kCancelling) return leave(call), Status();
  Status status =
      check_message(bulk.length_bytes, options_, "the reply", body_overhead_max(options_, endpoint_.seals()));
  if (!status.ok()) return give_up(call, status), Status();
  auto block = endpoint_.allocate(bulk.length_bytes, endpoint::BlockKind::kLanding);
  if (!block.ok()) return give_up(call, block.status()), Status();
  const endpoint::PoolBlock& landing = call->seldom_.write().body_block = std::move(*block);
  auto region = endpoint_.sink_region_for(landing.data(), landing.size());
  if (!region.ok()) return give_up(call, region.status()), Status();
  call->state_ = ClientCall::State::kFetchingBody;
  call->transferring_ = true;
  endpoint_.start_transfer(call->id_, provider::Opcode::kRead,
                           {{landing.data(), *region, bulk.address, bulk.rkey, bulk.length_bytes, bulk.seal}});
  return {};
}

Status ClientSide::on_transfer_finished(uint64_t call_id, WcStatus status) {
  const ClientCallRef call = find(call_id);
  RRPC_CHECK(call != nullptr, "a transfer ends before its call is erased");
  call->transferring_ = false;
  const bool wanted = call->state_ == ClientCall::State::kFetching || call->state_ == ClientCall::State::kFetchingBody;
  if (!wanted) return leave(call), Status();
  if (status != WcStatus::kSuccess) {
    give_up(call, unavailable("fetching the result failed: " + std::string(wc_status_name(status))));
  } else if (call->state_ == ClientCall::State::kFetchingBody) {
    call->state_ = ClientCall::State::kSent;
    return accept_reply(call, {call->seldom_->body_block.data(), call->seldom_->body_block.size()});
  } else {
    complete(call, {});
  }
  return {};
}

}  // namespace rrpc::rpc
