#include "rpc/server_side.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "endpoint/counters.h"
#include "rpc/client_side.h"
#include "rpc/streams.h"

namespace rrpc::rpc {

using provider::WcStatus;

// After its deadline a handler at work is told to stop, unless the client's CANCEL has done so: it may be on its way.
constexpr TimeNs kCancelGrace = 20 * kMillisecond;
constexpr TimeNs kEarlyMax = kSecond;

// As metadata: a map of one name, PUSH_BACK of rrpc/_call/retry.py, to the number as text.
static std::string retry_after(int64_t milliseconds) {
  if (milliseconds <= 0) return "";
  constexpr std::string_view kName = "retry-after-ms";
  const std::string value = std::to_string(milliseconds);
  constexpr unsigned kMapOfOne = 0x81, kShortText = 0xa0;
  std::string packed(1, static_cast<char>(kMapOfOne));
  for (const std::string_view text : {kName, std::string_view(value)}) {
    packed += static_cast<char>(kShortText | text.size());
    packed += text;
  }
  return packed;
}

bool ServerCall::late(TimeNs now) const {
  return overdue_.load(std::memory_order_relaxed) ||
         (late_.load(std::memory_order_relaxed) && deadline_ - now <= kEarlyMax);
}

inline ServerCallRef ServerSide::make(uint64_t call_id, TimeNs now) const {
  ServerCallRef call = ServerCallRef::make(*memory_of_calls_);
  call->id_ = call_id;
  call->arrived_at_ = now;
  return call;
}

[[gnu::cold]] static Status repeated_id(uint64_t call_id, uint64_t last_call_id) {
  return Status::protocol_error("a request with call id " + std::to_string(call_id) + " after " +
                                std::to_string(last_call_id));
}

// Clients number their calls upwards, so a number at or below the last one is a repeat.
inline Status ServerSide::check_new_id(uint64_t call_id) {
  if (call_id <= last_call_id_ || (call_id & (kServerCookie | kItemCookie)) != 0)
    return repeated_id(call_id, last_call_id_);
  // Refusals and acknowledgements wait for credits too: a peer that gives none must not pile them up.
  const bool some_wait = !cancel_acks_.empty() || !queue_.empty();
  if (some_wait && calls_.size() + cancel_acks_.size() >= size_t{2} * options_.calls_in_flight_max + kRingSlotsMax)
    return Status::protocol_error("the peer sends requests but takes no replies");
  last_call_id_ = call_id;
  return {};
}

[[gnu::cold]] static Status too_many_calls(size_t most) {
  return resource_exhausted("calls_in_flight_max: the server takes " + std::to_string(most) +
                            " calls at once from a connection");
}

[[gnu::always_inline]] inline Refusal ServerSide::why_refused(std::string_view method, Asked asked, TimeNs now) const {
  if (!refusal_.ok()) return {refusal_};
  if (calls_.size() >= options_.calls_in_flight_max) [[unlikely]]
    return refused_anyway(method, too_many_calls(options_.calls_in_flight_max), now);
  return events_.why_not(method, asked, now);
}

// Who may not make the call is told that, whatever else would keep it from running; it counts for no rate.
Refusal ServerSide::refused_anyway(std::string_view method, Status why, TimeNs now) const {
  Refusal refusal = events_.why_not(method, Asked::kAgain, now);
  return refusal.why.ok() ? Refusal{std::move(why)} : std::move(refusal);
}

inline void ServerSide::run(const ServerCallRef& call, TimeNs now) {
  call->ready_at_ = now;
  if (call->deadline_ != kNever) {
    call->expires_at_ = call->deadline_;
    earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
  }
  events_.on_request(call);
}

void ServerSide::hand_over(const ServerCallRef& call, TimeNs now) {
  if (!call->seldom_->failure.ok()) return refuse(call, std::move(call->seldom_.write().failure), now);
  call->state_ = ServerCall::State::kRunning;
  run(call, now);
}

// The time left counts from when the message came: a body that had to be fetched took its time.
inline void ServerSide::take_in(ServerCall& call, const RequestFixed& fixed, const RequestBody& parts) {
  call.method_ = parts.method;
  call.metadata_ = parts.metadata;
  call.payload_ = parts.payload;
  if (fixed.timeout_ns >= 0) call.deadline_ = deadline_after(call.arrived_at_, fixed.timeout_ns);
}

[[gnu::always_inline]] inline Refusal ServerSide::why_unfit(ServerCall& call, Asked asked, TimeNs now) const {
  if (!call.metadata_.empty()) {
    Status why = check_metadata(call.metadata_.size(), options_, "the request");
    if (!why.ok()) return {std::move(why)};
  }
  if (Status why = check_message(call.payload_.size(), options_, "the request"); !why.ok()) return {std::move(why)};
  ServerCall::SeldomUsed* const used = call.seldom_.written();
  if (used != nullptr && !used->failure.ok()) return refused_anyway(call.method_, std::move(used->failure), now);
  return why_refused(call.method_, asked, now);
}

// False: it was refused.
[[gnu::always_inline]] inline bool ServerSide::let_in(const ServerCallRef& call, Asked asked, TimeNs now) {
  Refusal refusal = why_unfit(*call, asked, now);
  if (refusal.why.ok()) return true;
  return refuse(call, std::move(refusal), now), false;
}

Status ServerSide::admit(const ServerCallRef& call, Bytes body, TimeNs now) {
  ParsedRequest request;
  RRPC_RETURN_IF_ERROR(parse_request(body, request, endpoint_.seals()));
  if (request.fixed.call_id != call->id_) return Status::protocol_error("a fetched request of another call");
  RRPC_RETURN_IF_ERROR(check_descriptors(request.fixed.descriptor_count, options_));
  take_in(*call, request.fixed, request);
  call->kind_ = request.fixed.flags & (kClientStreams | kServerStreams);
  if (request.out) {
    call->seldom_.write().out = *request.out;
    call->out_bytes_ = request.out->length_bytes;
    close_by_reply(*call, request.out->rkey);
  }
  if (!let_in(call, call->opened_ ? Asked::kAgain : Asked::kOnce, now)) return {};
  if (!std::exchange(call->opened_, true) && (call->kind_ != 0 || call->stream_ != nullptr))
    RRPC_RETURN_IF_ERROR(open_stream(*call));
  if (!request.descriptors.empty()) return fetch_arguments(call, request.descriptors, now);
  calls_.add(call->id_, call);
  hand_over(call, now);
  return {};
}

Status ServerSide::on_request(Bytes body, TimeNs now) {
  RequestFixed fixed;
  if (body.size() < sizeof(fixed)) return Status::protocol_error("a truncated request message");
  std::memcpy(&fixed, body.data(), sizeof(fixed));
  RRPC_RETURN_IF_ERROR(check_new_id(fixed.call_id));
  const ServerCallRef made = make(fixed.call_id, now);
  ServerCall& call = *made;
  if (!queue_body(call, body.size())) return refuse(made, queue_is_full(), now), Status();
  const Bytes kept = call.body_.assign(body);
  RequestBody parts;
  if (!fixed.is_bare() || !parts.split(fixed, kept.subspan(sizeof(fixed)))) return admit(made, kept, now);
  take_in(call, fixed, parts);
  if (!let_in(made, Asked::kOnce, now)) return {};
  calls_.add(call.id_, made);
  run(made, now);
  return {};
}

Status ServerSide::on_request_bulk(Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const ParsedBulk bulk, parse_bulk(body, endpoint_.seals()));
  RRPC_RETURN_IF_ERROR(check_new_id(bulk.call_id));
  const ServerCallRef call = make(bulk.call_id, now);
  call->seldom_.write().bulk = bulk;
  close_by_reply(*call, bulk.rkey);
  if (bulk.seal) call->body_.assign(body);
  const size_t bytes = endpoint::Pool::block_bytes(bulk.length_bytes);
  Status status =
      check_message(bulk.length_bytes, options_, "the request", body_overhead_max(options_, endpoint_.seals()));
  if (status.ok()) status = shares_.landing.check(bytes);
  Refusal refusal = status.ok() ? why_refused("", Asked::kBeforeMethod, now) : Refusal{std::move(status)};
  if (!refusal.why.ok()) return refuse(call, std::move(refusal), now), Status();
  fetch_body(call, bytes, now);
  return {};
}

void ServerSide::refuse(const ServerCallRef& call, Refusal refusal, TimeNs now) {
  stop_waiting(*call);
  call->state_ = ServerCall::State::kRunning;
  call->refused_ = true;
  calls_.add(call->id_, call);
  if (call->queued_bytes_ == 0) (void)queue_body(*call, 0);
  drop_arguments(*call);
  endpoint_.tally(&endpoint::Counters::calls_refused);
  Reply error;
  error.status = std::move(refusal.why);
  error.not_executed = true;
  const std::string metadata = retry_after(refusal.retry_after_ms);
  if (metadata.size() <= options_.metadata_bytes_max) error.metadata = as_bytes(metadata);
  reply(call, std::move(error), now);
}

// Of a call that no handler will see: its reply may have to wait for credits.
void ServerSide::drop_arguments(ServerCall& call) {
  call.blocks_.clear();
  if (ServerCall::SeldomUsed* const used = call.seldom_.written(); used != nullptr) {
    used->body_block = {};
    used->landed = {};
  }
}

// Its handler may be at work.
void ServerSide::tell_given_up(ServerCall& call) {
  ServerCall::SeldomUsed* const used = call.seldom_.written();
  if (used == nullptr) return;
  for (const auto& tell : std::exchange(used->on_given_up, {})) tell();
}

Status ServerSide::on_transfer_finished(uint64_t call_id, WcStatus status, TimeNs now) {
  const ServerCallRef call = find(call_id);
  RRPC_CHECK(call != nullptr, "a transfer ends before its call is erased");
  if (call->state_ == ServerCall::State::kWriting) {
    call->seldom_.write().out_source = {};
    if (status == WcStatus::kSuccess && !endpoint_.failed())
      send_reply(call, std::exchange(call->seldom_.write().pending_reply, {}), now);
    else
      erase(call);
    return {};
  }
  shares_.landing.fetch_ended(call->seldom_->landed.bytes());
  if (call->given_up_by_client_ && !endpoint_.failed()) {
    call->state_ = ServerCall::State::kCancelled;
    return end_cancelled(call, now), Status();
  }
  if (call->cancelled() || status != WcStatus::kSuccess) {
    if (call->cancelled() && !endpoint_.failed()) cancel_acks_.add(call->id_);
    erase(call);
    return {};
  }
  if (call->state_ == ServerCall::State::kFetchingBody) {
    calls_.erase(call_id);  // admit() decides anew
    return admit(call, {call->seldom_->body_block.data(), call->seldom_->body_block.size()}, now);
  }
  hand_over(call, now);
  return {};
}

Status ServerSide::on_cancel(Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, parse_call_ids(body));
  for (const uint64_t id_and_reason : ids) {
    const uint64_t id = id_and_reason & ~kDeadlineBit;
    if (id > last_call_id_)
      return Status::protocol_error("a cancel of call " + std::to_string(id) + ", which never came");
    const ServerCallRef call = find(id);
    if (call == nullptr || call->given_up_by_client_) continue;
    if (!call->cancelled()) call->late_ = id != id_and_reason || call->deadline_ <= now;
    if (call->stream_ != nullptr) {
      cancel_streams(call, now);
      continue;
    }
    if (call->cancelled()) continue;  // its reply has gone, or its acknowledgement is to go
    switch (call->state_) {
      case ServerCall::State::kWaiting:
        call->cancelled_ = true;
        erase(call);
        break;
      case ServerCall::State::kFetchingBody:
      case ServerCall::State::kFetching:
        call->cancelled_ = true;
        endpoint_.cancel_transfer(id | kServerCookie);  // acknowledged when no read is in flight
        continue;
      case ServerCall::State::kWriting:
      case ServerCall::State::kLeased:
      case ServerCall::State::kEnding:
      case ServerCall::State::kCancelled:
        continue;  // the reply itself ends the client's wait
      case ServerCall::State::kRunning:
        call->cancelled_ = true;
        if (events_.take_back(call)) erase(call);
        tell_given_up(*call);
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

Status ServerSide::on_done(Bytes body, TimeNs now) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, parse_call_ids(body));
  for (const uint64_t id : ids) {
    if (id > last_call_id_)
      return Status::protocol_error("a DONE for call " + std::to_string(id) + ", which never came");
    const ServerCallRef call = find(id);
    if (call == nullptr) continue;  // its lease had ended
    RRPC_ASSIGN_OR_RETURN(const bool of_items, take_done(call, now));
    if (of_items) continue;
    if (call->state_ != ServerCall::State::kLeased)
      return Status::protocol_error("a DONE for call " + std::to_string(id) + " before its reply");
    erase(call);
  }
  return {};
}

// A small result goes straight from the caller's bytes to where the peer, the socket or the adapter reads it.
[[gnu::always_inline]] inline bool ServerSide::send_inline(ServerCall& call, const Reply& reply) {
  if (!queue_.empty() || reply.payload.size() > options_.message_bytes_max) return false;
  ReplyFixed fixed;
  fixed.call_id = call.id_;
  fixed.metadata_bytes = static_cast<uint16_t>(reply.metadata.size());
  const Bytes head = std::as_bytes(std::span(&fixed, 1));
  const size_t length = sizeof(fixed) + reply.metadata.size() + reply.payload.size();
  std::byte* body = call.invalidates_ == 0 ? endpoint_.begin_message(kReply, length) : nullptr;
  if (body != nullptr) [[likely]] {
    body = append(body, head);
    if (!reply.metadata.empty()) body = append(body, reply.metadata);
    append(body, reply.payload);
    endpoint_.commit_message();
  } else {
    if (!endpoint_.can_send(kReply) || length > endpoint_.body_bytes_max()) return false;
    if (call.invalidates_ != 0) endpoint_.invalidate_with_next(call.invalidates_);
    endpoint_.send(kReply, std::array{head, reply.metadata, reply.payload});
  }
  // A handler's call without streams holds nothing else.
  shares_.queued.remove(std::exchange(call.queued_bytes_, 0));
  calls_.erase(call.id_);
  if (backed_up_) let_go_on();
  return true;
}

void ServerSide::reply(const ServerCallRef& ref, Reply reply, TimeNs now) {
  ServerCall& call = *ref;
  if (ServerCall::SeldomUsed* const used = call.seldom_.written(); used != nullptr)
    used->landed.end();  // what the handler keeps is its own
  const bool ended = call.cancelled() || endpoint_.failed();
  if (ended || call.overdue_ || call.deadline_ <= now) [[unlikely]]
    drop_unwanted(call, reply, now);
  if (call.stream_ != nullptr) return reply_after_items(ref, std::move(reply), now);
  if (ended) return erase(ref);
  RRPC_CHECK(call.state_ == ServerCall::State::kRunning, "a call is answered once");
  endpoint_.tally(&endpoint::Counters::calls_served);
  if (!reply.metadata.empty()) {
    Status status = check_metadata(reply.metadata.size(), options_, "the reply");
    if (!status.ok()) reply = Reply{.status = call.outcome_ = std::move(status)};
  }
  if (!reply.status.ok() || !reply.buffers.empty() || !send_inline(call, reply)) reply_otherwise(ref, reply, now);
}

void ServerSide::flush_some(TimeNs now) {
  cancel_acks_.flush(endpoint_);
  while (!queue_.empty() && endpoint_.can_send(kReply)) {
    const QueuedReply reply = std::move(queue_.front());
    queue_.pop_front();
    const Bytes part = as_bytes(reply.body);
    if (reply.call->invalidates_ != 0) endpoint_.invalidate_with_next(reply.call->invalidates_);
    reply.call->seldom_->exposures.send(endpoint_, reply.type, {&part, 1});
    if (endpoint_.failed()) return;
    sent(reply.call, now);
  }
  let_go_on();
}

void ServerSide::sent(const ServerCallRef& call, TimeNs now) {
  if (call->seldom_->exposures.empty() && !Streams::exposes(call->stream_)) return erase(call);
  shares_.queued.remove(std::exchange(call->queued_bytes_, 0));
  call->state_ = ServerCall::State::kLeased;
  call->expires_at_ = deadline_after(now, options_.lease_timeout);
  earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
  if (unread_ > 0 && endpoint_.knows_solicited()) {
    look_for_done_after_ = kLookForDoneMin;
    look_for_done_at_ = std::min(look_for_done_at_, now + look_for_done_after_);
  }
}

void ServerSide::expire(TimeNs now) {
  if (now < earliest_expiry_) return;
  std::vector<ServerCallRef> expired;
  earliest_expiry_ = kNever;
  calls_.for_each([&](const ServerCallRef& call) {
    using enum ServerCall::State;
    if (!leased(*call) && call->state_ != kRunning && call->state_ != kWaiting) return;
    if (call->expires_at_ <= now)
      expired.push_back(call);
    else
      earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
  });
  for (const ServerCallRef& call : expired) {
    if (leased(*call)) {
      endpoint_.tally(&endpoint::Counters::leases_expired);
      if (call->state_ == ServerCall::State::kLeased) {
        erase(call);
      } else {
        streams_.release(call->stream_);
        end_cancelled(call, now);
      }
    } else if (call->state_ == ServerCall::State::kWaiting) {
      refuse(call, deadline_exceeded("the call's deadline passed while it waited for landing memory"), now);
    } else if (events_.take_back(call)) {
      drop_arguments(*call);
      reply(call, waited_too_long(), now);
    } else if (call->expires_at_ == call->deadline_) {
      call->expires_at_ = deadline_after(now, kCancelGrace);
      earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
    } else {
      call->expires_at_ = kNever;
      call->overdue_ = true;
      if (call->stream_ != nullptr)
        streams_.end(call->stream_, deadline_exceeded("the call's deadline has passed, and its client is silent"));
      tell_given_up(*call);
    }
  }
}

size_t ServerSide::results_under_way() const {
  size_t count = 0;
  calls_.for_each([&count](const ServerCallRef& call) {
    using enum ServerCall::State;
    const ServerCall::State state = call->state_;
    count += state != kWaiting && state != kFetchingBody && state != kFetching && state != kRunning ? 1 : 0;
  });
  return count;
}

void ServerSide::fail_all() {
  earliest_expiry_ = look_for_done_at_ = kNever;
  queue_.clear();
  cancel_acks_.clear();
  std::vector<ServerCallRef> calls;
  calls_.for_each([&](const ServerCallRef& call) { calls.push_back(call); });
  // All of them first: to stop a stream's reads may deliver what else has ended.
  for (const ServerCallRef& call : calls) {
    call->cancelled_ = true;
    if (call->stream_ != nullptr) streams_.end(call->stream_, unavailable("the connection to the client has ended"));
  }
  for (const ServerCallRef& call : calls) {
    // Memory of transfers under way belongs to the device until they are reported finished.
    const bool transferring = call->state_ == ServerCall::State::kFetching ||
                              call->state_ == ServerCall::State::kFetchingBody ||
                              call->state_ == ServerCall::State::kWriting;
    if (transferring) {
      release(*call);
    } else {
      (void)events_.take_back(call);
      erase(call);
      tell_given_up(*call);
    }
  }
}

}  // namespace rrpc::rpc
