#include "rpc/server_side.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "endpoint/counters.h"
#include "rpc/client_side.h"

namespace rrpc::rpc {

using provider::WcStatus;

ServerCallRef ServerSide::find(uint64_t call_id) const {
  const auto it = calls_.find(call_id);
  return it == calls_.end() ? nullptr : it->second;
}

// Clients number their calls upwards, so a number at or below the last one is a repeat.
Status ServerSide::check_new_id(uint64_t call_id) {
  if (call_id <= last_call_id_ || (call_id & kServerCookie) != 0)
    return Status::protocol_error("a request with call id " + std::to_string(call_id) + " after " +
                                  std::to_string(last_call_id_));
  // Refusals and acknowledgements wait for credits too: a peer that gives none must not pile them up.
  if (calls_.size() + cancel_acks_.size() >= size_t{2} * options_.calls_in_flight_max + kRingSlotsMax)
    return Status::protocol_error("the peer sends requests but takes no replies");
  last_call_id_ = call_id;
  return {};
}

Status ServerSide::on_request(Bytes body, TimeNs now) {
  ByteReader reader(body);
  const auto call_id = reader.read<uint64_t>();
  if (reader.failed()) return Status::protocol_error("a truncated request message");
  RRPC_RETURN_IF_ERROR(check_new_id(call_id));
  auto call = std::make_shared<ServerCall>();
  call->id_ = call_id;
  call->arrived_at_ = now;
  call->body_ = as_text(body);
  return admit(call, as_bytes(call->body_), now);
}

Status ServerSide::on_request_bulk(Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const BulkBody bulk, parse_bulk(body));
  RRPC_RETURN_IF_ERROR(check_new_id(bulk.call_id));
  auto call = std::make_shared<ServerCall>();
  call->id_ = bulk.call_id;
  call->arrived_at_ = now;
  if (Status status = why_refused(); !status.ok()) return refuse(call, std::move(status), now), Status();
  auto block = endpoint_.allocate(bulk.length_bytes, endpoint::BlockKind::kLanding);
  if (!block.ok()) return refuse(call, block.status(), now), Status();
  call->body_block_ = std::move(*block);
  auto region = endpoint_.sink_region_for(call->body_block_.data(), call->body_block_.size());
  if (!region.ok()) return refuse(call, region.status(), now), Status();
  call->state_ = ServerCall::State::kFetchingBody;
  calls_.emplace(call->id_, call);
  endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kRead,
                           {{call->body_block_.data(), *region, bulk.address, bulk.rkey, bulk.length_bytes}});
  return {};
}

Status ServerSide::why_refused() const {
  if (!refusal_.ok()) return refusal_;
  if (calls_.size() < options_.calls_in_flight_max) return events_.why_full();
  return resource_exhausted("calls_in_flight_max: the server takes " + std::to_string(options_.calls_in_flight_max) +
                            " calls at once from a connection");
}

void ServerSide::refuse(const ServerCallRef& call, Status why, TimeNs now) {
  call->state_ = ServerCall::State::kRunning;
  calls_.emplace(call->id_, call);
  drop_arguments(*call);
  endpoint_.tally(&endpoint::Counters::calls_refused);
  Reply error;
  error.status = std::move(why);
  error.not_seen = true;
  reply(call, std::move(error), now);
}

// Of a call that no handler will see: its reply may have to wait for credits.
void ServerSide::drop_arguments(ServerCall& call) {
  call.blocks_.clear();
  call.body_block_ = {};
}

void ServerSide::hand_over(const ServerCallRef& call, TimeNs now) {
  call->state_ = ServerCall::State::kRunning;
  call->ready_at_ = now;
  earliest_expiry_ = std::min(earliest_expiry_, call->deadline_);
  events_.on_request(call);
}

Status ServerSide::admit(const ServerCallRef& call, Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const ParsedRequest request, parse_request(body));
  if (request.fixed.call_id != call->id_) return Status::protocol_error("a fetched request of another call");
  call->method_ = request.method;
  call->metadata_ = request.metadata;
  call->payload_ = request.payload;
  call->kind_ = request.fixed.flags & (kClientStreams | kServerStreams);
  call->has_out_ = request.has_out();
  call->out_ = request.out;
  if (request.fixed.timeout_ns >= 0) call->deadline_ = deadline_after(now, request.fixed.timeout_ns);
  Status status = check_metadata(request.metadata.size(), options_, "the request");
  if (status.ok()) status = why_refused();
  if (!status.ok()) return refuse(call, std::move(status), now), Status();
  if (!request.descriptors.empty()) {
    auto segments = prepare_landing(endpoint_, request.descriptors, nullptr, call->blocks_);
    if (!segments.ok()) return refuse(call, segments.status(), now), Status();
    call->state_ = ServerCall::State::kFetching;
    calls_.emplace(call->id_, call);
    endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kRead, std::move(*segments));
    return {};
  }
  calls_.emplace(call->id_, call);
  hand_over(call, now);
  return {};
}

Status ServerSide::on_transfer_finished(uint64_t call_id, WcStatus status, TimeNs now) {
  const ServerCallRef call = find(call_id);
  RRPC_CHECK(call != nullptr, "a transfer ends before its call is erased");
  if (call->state_ == ServerCall::State::kWriting) {
    call->out_source_ = {};
    if (status == WcStatus::kSuccess && !endpoint_.failed())
      send_reply(call, std::exchange(call->pending_reply_, {}), now);
    else
      erase(call);
    return {};
  }
  if (call->cancelled() || status != WcStatus::kSuccess) {
    if (call->cancelled() && !endpoint_.failed()) cancel_acks_.add(call->id_);
    erase(call);
    return {};
  }
  if (call->state_ == ServerCall::State::kFetchingBody) {
    calls_.erase(call_id);  // admit() decides anew
    return admit(call, {call->body_block_.data(), call->body_block_.size()}, now);
  }
  hand_over(call, now);
  return {};
}

Status ServerSide::on_cancel(Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, parse_call_ids(body));
  for (const uint64_t id : ids) {
    if (id > last_call_id_)
      return Status::protocol_error("a cancel of call " + std::to_string(id) + ", which never came");
    const ServerCallRef call = find(id);
    if (call == nullptr || call->cancelled()) continue;  // its reply has gone, or its acknowledgement is to go
    switch (call->state_) {
      case ServerCall::State::kFetchingBody:
      case ServerCall::State::kFetching:
        call->cancelled_ = true;
        endpoint_.cancel_transfer(id | kServerCookie);  // acknowledged when no read is in flight
        continue;
      case ServerCall::State::kWriting:
      case ServerCall::State::kLeased:
        continue;  // the reply itself ends the client's wait
      case ServerCall::State::kRunning:
        call->cancelled_ = true;
        if (events_.take_back(call)) erase(call);
        break;
      case ServerCall::State::kReplying:
        // The acknowledgement overtakes what waits for credits, and after it no reply may come.
        std::erase_if(queue_, [&call](const QueuedReply& queued) { return queued.call == call; });
        erase(call);
        break;
    }
    cancel_acks_.add(id);
  }
  flush(now);
  return {};
}

Status ServerSide::on_done(Bytes body) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, parse_call_ids(body));
  for (const uint64_t id : ids) {
    if (id > last_call_id_)
      return Status::protocol_error("a DONE for call " + std::to_string(id) + ", which never came");
    const ServerCallRef call = find(id);
    if (call == nullptr) continue;  // its lease had ended
    if (call->state_ != ServerCall::State::kLeased)
      return Status::protocol_error("a DONE for call " + std::to_string(id) + " before its reply");
    erase(call);
  }
  return {};
}

void ServerSide::reply(const ServerCallRef& call, Reply reply, TimeNs now) {
  if (call->cancelled() || endpoint_.failed()) return erase(call);
  RRPC_CHECK(call->state_ == ServerCall::State::kRunning, "a call is answered once");
  endpoint_.tally(&endpoint::Counters::calls_served);
  if (Status status = check_metadata(reply.metadata.size(), options_, "the reply"); !status.ok())
    reply = Reply{.status = std::move(status)};
  if (!reply.status.ok()) reply.buffers.clear();
  if (reply.out_index >= reply.buffers.size()) reply.out_index = kNoOutIndex;
  if (reply.out_index != kNoOutIndex && start_out_write(call, reply)) return;
  if (reply.status.ok() && reply.buffers.empty() && send_inline(call, reply)) return;
  std::string body;
  if (Status status = compose(*call, reply, false, body); !status.ok()) compose_error(*call, std::move(status), body);
  send_reply(call, std::move(body), now);
}

// In place of a result that can't be sent.
void ServerSide::compose_error(ServerCall& call, Status status, std::string& body) {
  release(call);
  Reply error;
  error.status = std::move(status);
  body.clear();
  RRPC_CHECK(compose(call, error, false, body).ok(), "an error without buffers can be composed");
}

// The fast path: a small result goes straight from the caller's bytes into the peer's slot.
bool ServerSide::send_inline(const ServerCallRef& call, const Reply& reply) {
  if (!queue_.empty() || !endpoint_.can_send(kReply)) return false;
  if (sizeof(ReplyFixed) + reply.metadata.size() + reply.payload.size() > endpoint_.body_bytes_max()) return false;
  ReplyFixed fixed;
  fixed.call_id = call->id_;
  fixed.metadata_bytes = static_cast<uint16_t>(reply.metadata.size());
  const Bytes parts[] = {std::as_bytes(std::span(&fixed, 1)), reply.metadata, reply.payload};
  endpoint_.send(kReply, parts);
  erase(call);
  return true;
}

Status ServerSide::expose_results(ServerCall& call, Reply& reply, bool out_written,
                                  std::vector<endpoint::Descriptor>& descriptors) {
  size_t bytes = 0;
  for (const endpoint::Buffer& buffer : reply.buffers) bytes += buffer.length_bytes;
  if (bytes > options_.exposed_bytes_max - std::min(exposed_bytes_, options_.exposed_bytes_max))
    return resource_exhausted("exposed_bytes_max: the server's results of " + std::to_string(bytes) +
                              " bytes would pass the limit of " + std::to_string(options_.exposed_bytes_max) +
                              " bytes exposed to one client");
  if (reply.buffers.size() > kDescriptorsPerMessageMax)
    return resource_exhausted("a result with " + std::to_string(reply.buffers.size()) +
                              " large buffers, the limit is " + std::to_string(kDescriptorsPerMessageMax));
  RRPC_RETURN_IF_ERROR(fit_descriptors(endpoint_, reply.buffers));
  for (size_t i = 0; i < reply.buffers.size(); ++i) {
    if (out_written && i == reply.out_index) {
      descriptors.push_back({0, reply.buffers[i].length_bytes, 0});
      continue;
    }
    const size_t first = call.exposures_.size();
    RRPC_RETURN_IF_ERROR(call.exposures_.add(endpoint_, std::move(reply.buffers[i]), provider::kRemoteRead));
    for (size_t k = first; k < call.exposures_.size(); ++k) descriptors.push_back(call.exposures_.descriptor(k));
  }
  return {};
}

Status ServerSide::compose(ServerCall& call, Reply& reply, bool out_written, std::string& body) {
  std::vector<endpoint::Descriptor> descriptors;
  RRPC_RETURN_IF_ERROR(expose_results(call, reply, out_written, descriptors));
  ReplyFixed fixed;
  fixed.call_id = call.id_;
  fixed.status = static_cast<uint8_t>(reply.status.code());
  fixed.flags = static_cast<uint8_t>((out_written ? kOutWritten : 0) | (reply.not_seen ? kNotSeen : 0));
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
  count_exposed(call);
  return {};
}

void ServerSide::count_exposed(ServerCall& call) {
  exposed_bytes_ += call.exposures_.bytes() - call.exposed_bytes_;
  call.exposed_bytes_ = call.exposures_.bytes();
}

// The source's pieces go one behind the other.
Result<std::vector<endpoint::TransferSegment>> ServerSide::out_segments(const endpoint::Buffer& source,
                                                                        const endpoint::Descriptor& out) {
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
  if (!call->has_out_) return false;
  endpoint::Buffer& source = reply.buffers[reply.out_index];
  if (source.length_bytes != call->out_.length_bytes || source.length_bytes == 0) return false;
  auto segments = out_segments(source, call->out_);
  if (!segments.ok()) return false;
  call->out_source_ = std::move(source);  // its length stays, for the descriptor
  std::string body;
  if (Status status = compose(*call, reply, true, body); !status.ok()) {
    release(*call);
    reply.status = std::move(status);
    reply.buffers.clear();
    reply.out_index = kNoOutIndex;
    call->out_source_ = {};
    return false;
  }
  call->pending_reply_ = std::move(body);
  call->state_ = ServerCall::State::kWriting;
  endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kWrite, std::move(*segments));
  return true;
}

void ServerSide::send_reply(const ServerCallRef& call, std::string body, TimeNs now) {
  uint8_t type = kReply;
  if (body.size() > endpoint_.body_bytes_max()) {
    auto block = endpoint_.allocate(body.size(), endpoint::BlockKind::kShared);
    Status status = block.status();
    if (block.ok()) {
      ByteWriter({block->data(), block->size()}).write_bytes(as_bytes(body));
      endpoint_.tally(&endpoint::Counters::copies);
      endpoint_.tally(&endpoint::Counters::bytes_copied, static_cast<int64_t>(body.size()));
      status = call->exposures_.add_block(endpoint_, std::move(*block));
    }
    if (!status.ok()) {
      compose_error(*call, std::move(status), body);
    } else {
      count_exposed(*call);
      const endpoint::Descriptor& descriptor = call->exposures_.last();
      const BulkBody bulk{call->id_, descriptor.address, descriptor.length_bytes, descriptor.rkey, 0};
      body.assign(reinterpret_cast<const char*>(&bulk), sizeof(bulk));
      type = kReplyBulk;
    }
  }
  call->state_ = ServerCall::State::kReplying;
  queue_.push_back({call, type, std::move(body)});
  flush(now);
  if (!queue_.empty()) endpoint_.tally(&endpoint::Counters::credit_waits);  // this one, at the queue's end
}

void ServerSide::flush(TimeNs now) {
  cancel_acks_.flush(endpoint_);
  while (!queue_.empty() && endpoint_.can_send(kReply)) {
    const QueuedReply reply = std::move(queue_.front());
    queue_.pop_front();
    const Bytes part = as_bytes(reply.body);
    endpoint_.send(reply.type, {&part, 1});
    if (endpoint_.failed()) return;
    sent(reply.call, now);
  }
}

void ServerSide::sent(const ServerCallRef& call, TimeNs now) {
  if (call->exposures_.empty()) return erase(call);
  call->state_ = ServerCall::State::kLeased;
  call->lease_end_ = deadline_after(now, options_.lease_timeout);
  earliest_expiry_ = std::min(earliest_expiry_, call->lease_end_);
}

void ServerSide::expire(TimeNs now) {
  if (now < earliest_expiry_) return;
  std::vector<ServerCallRef> expired;
  earliest_expiry_ = kNever;
  for (const auto& [id, call] : calls_) {
    const bool leased = call->state_ == ServerCall::State::kLeased;
    if (!leased && call->state_ != ServerCall::State::kRunning) continue;
    const TimeNs end = leased ? call->lease_end_ : call->deadline_;
    if (end <= now)
      expired.push_back(call);
    else
      earliest_expiry_ = std::min(earliest_expiry_, end);
  }
  for (const ServerCallRef& call : expired) {
    if (call->state_ == ServerCall::State::kLeased) {
      endpoint_.tally(&endpoint::Counters::leases_expired);
      erase(call);
    } else if (events_.take_back(call)) {
      drop_arguments(*call);
      reply(call, waited_too_long(), now);
    }
  }
}

size_t ServerSide::results_under_way() const {
  return static_cast<size_t>(std::ranges::count_if(calls_, [](const auto& entry) {
    const ServerCall::State state = entry.second->state_;
    return state == ServerCall::State::kWriting || state == ServerCall::State::kReplying ||
           state == ServerCall::State::kLeased;
  }));
}

void ServerSide::release(ServerCall& call) {
  call.exposures_.revoke_all(endpoint_);
  exposed_bytes_ -= std::exchange(call.exposed_bytes_, 0);
}

void ServerSide::erase(const ServerCallRef& call) {
  release(*call);
  calls_.erase(call->id_);
}

void ServerSide::fail_all() {
  earliest_expiry_ = kNever;
  queue_.clear();
  cancel_acks_.clear();
  std::vector<ServerCallRef> calls;
  for (const auto& [id, call] : calls_) calls.push_back(call);
  for (const ServerCallRef& call : calls) {
    call->cancelled_ = true;
    // Memory of transfers under way belongs to the device until they are reported finished.
    const bool transferring = call->state_ == ServerCall::State::kFetching ||
                              call->state_ == ServerCall::State::kFetchingBody ||
                              call->state_ == ServerCall::State::kWriting;
    if (transferring) {
      release(*call);
    } else {
      (void)events_.take_back(call);
      erase(call);
    }
  }
}

}  // namespace rrpc::rpc
