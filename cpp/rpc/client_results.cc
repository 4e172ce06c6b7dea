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
  const bool waited = code == StatusCode::kDeadlineExceeded && (reply.fixed.flags & kNotSeen) != 0;
  if (!waited || call.deadline() == kNever) return {code, std::string(reply.message)};
  return {code, call.deadline_passed().message() + ": " + std::string(reply.message)};
}

}  // namespace

// The server has read what it wanted of the arguments and the items.
void ClientSide::release(const ClientCallRef& call) {
  exposed_bytes_ -= std::min(exposed_bytes_, call->exposures_.bytes());
  call->exposures_.revoke_all(endpoint_);
  if (call->stream_ != nullptr) streams_.peer_ended(call->stream_);
}

void ClientSide::finish(const ClientCallRef& call, Status status) {
  if (call->done()) return;
  call->stamps.mark(&CallStamps::fetched);
  call->status_ = std::move(status);
  endpoint_.tally(&endpoint::Counters::calls_ended);
  call->done_.store(true, std::memory_order_release);
  if (call->stream_ != nullptr) streams_.end(call->stream_, call->status_);
  events_.on_call_done(call);
}

void ClientSide::erase(const ClientCallRef& call) {
  call->state_ = ClientCall::State::kEnded;
  call->out_ = {};
  calls_.erase(call->id_);
  in_flight_.store(calls_.size(), std::memory_order_relaxed);
}

void ClientSide::complete(const ClientCallRef& call, Status outcome) {
  if (!Streams::idle(call->stream_)) {
    call->state_ = ClientCall::State::kFetchingItems;
    call->status_ = std::move(outcome);
    return;
  }
  finish(call, std::move(outcome));
  leave(call);
}

void ClientSide::leave(const ClientCallRef& call) {
  if (call->state_ == ClientCall::State::kEnded) return;
  call->state_ = ClientCall::State::kDraining;
  if (call->transferring_ || !Streams::idle(call->stream_)) return;
  if (!call->status_.ok()) call->blocks_.clear();
  if (call->leased_ || Streams::saw_exposed(call->stream_)) done_.add(call->id_);
  erase(call);
}

Status ClientSide::on_reply(Bytes body) {
  ByteReader reader(body);
  const auto call_id = reader.read<uint64_t>();
  const ClientCallRef call = find(call_id);
  if (call == nullptr || call->state_ == ClientCall::State::kQueued) return unasked_reply(call_id);
  if (call->state_ != ClientCall::State::kSent && call->state_ != ClientCall::State::kCancelling)
    return second_reply(call_id);
  call->stamps.mark(&CallStamps::replied);
  return accept_reply(call, body);
}

Status ClientSide::accept_reply(const ClientCallRef& call, Bytes body) {
  ParsedReply reply;
  RRPC_RETURN_IF_ERROR(parse_reply(body, reply));
  if (reply.fixed.call_id != call->id_) return Status::protocol_error("a fetched reply of another call");
  RRPC_RETURN_IF_ERROR(check_descriptors(reply.descriptors.size(), options_));
  call->leased_ = call->leased_ || reply.fixed.descriptor_count > (reply.out_written() ? 1 : 0);
  release(call);
  if (call->state_ == ClientCall::State::kCancelling) return leave(call), Status();
  if (Status status = check_metadata(reply.metadata.size(), options_, "the reply"); !status.ok())
    return give_up(call, status), Status();
  if (!reply.metadata.empty()) call->metadata_ = as_text(reply.metadata);
  if (reply.fixed.status != 0) {
    if ((reply.fixed.flags & kNotSeen) != 0) call->may_have_run_ = false;
    call->details_ = as_text(reply.payload);
    complete(call, status_of(*call, reply));
    return {};
  }
  if (call->body_block_)
    call->block_payload_ = reply.payload;  // stays where it was fetched to
  else
    call->payload_.assign(reply.payload);
  if (reply.fixed.descriptor_count > 0) return fetch(call, reply);
  complete(call, {});
  return {};
}

// Where the result goes into the caller's memory. The caller's own faults are errors of the call, not of the peer.
Status ClientSide::prepare_out(const ClientCall& call, const ParsedReply& reply, OutTarget& out) {
  const size_t result_bytes = total_bytes(buffer_at(reply.descriptors, reply.fixed.out_index));
  if (call.out_.data == nullptr || (reply.out_written() && !call.out_offered_))
    return Status::protocol_error("a reply for out= memory that was not offered");
  if (call.out_.length_bytes != result_bytes) {
    const std::string text = "a result of " + std::to_string(result_bytes) + " bytes for out= memory of " +
                             std::to_string(call.out_.length_bytes);
    return reply.out_written() ? Status::protocol_error(text) : invalid_argument(text);
  }
  out = {reply.fixed.out_index, call.out_.data, call.out_.length_bytes, nullptr};
  if (reply.out_written() || out.length_bytes == 0) return {};
  RRPC_ASSIGN_OR_RETURN(out.region, endpoint_.sink_region_for(out.data, out.length_bytes, call.out_.owner_id));
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
  RRPC_ASSIGN_OR_RETURN(const BulkBody bulk, parse_bulk(body));
  const ClientCallRef call = find(bulk.call_id);
  if (call == nullptr || (call->state_ != ClientCall::State::kSent && call->state_ != ClientCall::State::kCancelling))
    return unasked_reply(bulk.call_id);
  call->stamps.mark(&CallStamps::replied);
  call->leased_ = true;
  release(call);
  if (call->state_ == ClientCall::State::kCancelling) return leave(call), Status();
  Status status = check_message(bulk.length_bytes, options_, "the reply", body_overhead_max(options_));
  if (!status.ok()) return give_up(call, status), Status();
  auto block = endpoint_.allocate(bulk.length_bytes, endpoint::BlockKind::kLanding);
  if (!block.ok()) return give_up(call, block.status()), Status();
  call->body_block_ = std::move(*block);
  auto region = endpoint_.sink_region_for(call->body_block_.data(), call->body_block_.size());
  if (!region.ok()) return give_up(call, region.status()), Status();
  call->state_ = ClientCall::State::kFetchingBody;
  call->transferring_ = true;
  endpoint_.start_transfer(call->id_, provider::Opcode::kRead,
                           {{call->body_block_.data(), *region, bulk.address, bulk.rkey, bulk.length_bytes}});
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
    return accept_reply(call, {call->body_block_.data(), call->body_block_.size()});
  } else {
    complete(call, {});
  }
  return {};
}

}  // namespace rrpc::rpc
