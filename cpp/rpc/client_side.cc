#include "rpc/client_side.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "endpoint/counters.h"

namespace rrpc::rpc {
namespace {

size_t total_bytes(std::span<const Bytes> parts) {
  size_t length = 0;
  for (const Bytes part : parts) length += part.size();
  return length;
}

void join(std::span<const Bytes> parts, MutableBytes target) {
  ByteWriter writer(target);
  for (const Bytes part : parts) writer.write_bytes(part);
}

}  // namespace

Status ClientCall::deadline_passed() const {
  const double seconds = static_cast<double>(deadline_ - started_at_) / kSecond;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", seconds);
  return deadline_exceeded(std::string(as_text(method_.view())) + "() was not done within its timeout of " +
                           text.data() + " s");
}

Status ClientSide::check_exposed(const CallRequest& request) const {
  size_t bytes = 0;
  for (const endpoint::Buffer& buffer : request.buffers) bytes += buffer.length_bytes;
  if (request.out) bytes += request.out->length_bytes;
  if (options_.exposed_bytes_max != 0 && exposed_bytes_ + bytes > options_.exposed_bytes_max)
    return resource_exhausted("exposed_bytes_max: " + std::to_string(exposed_bytes_) +
                              " bytes are exposed to this peer, " + std::to_string(bytes) +
                              " more would pass the limit of " + std::to_string(options_.exposed_bytes_max));
  return check_buffers(request.buffers.size(), endpoint_.descriptors_max(), "the request");
}

[[gnu::cold]] static Status too_many_calls(size_t most) {
  return resource_exhausted("calls_in_flight_max: " + std::to_string(most) + " calls are in flight on this connection");
}

inline Status ClientSide::check_bounds(const CallRequest& request) const {
  if (!ended_.ok()) return ended_;
  if (!refusal_.ok()) return refusal_;
  if (calls_.size() >= options_.calls_in_flight_max) return too_many_calls(options_.calls_in_flight_max);
  if (exposes(request)) RRPC_RETURN_IF_ERROR(check_exposed(request));
  RRPC_RETURN_IF_ERROR(check_message(request.payload.size(), options_, "the request"));
  if (request.kind != 0 && !streams_.peer_streams())
    return unimplemented("the peer knows no streams; use the same release on both ends");
  if (request.method.size() > UINT16_MAX) return invalid_argument("a method name longer than 65535 bytes");
  return check_metadata(request.metadata.size(), options_, "the request");
}

Status ClientSide::expose_all(ClientCall& call, CallRequest& request, RequestFixed& fixed) {
  RRPC_RETURN_IF_ERROR(fit_descriptors(endpoint_, request.buffers));
  Exposures& exposures = call.seldom_.write().exposures;
  for (endpoint::Buffer& buffer : request.buffers)
    RRPC_RETURN_IF_ERROR(exposures.add(endpoint_, std::move(buffer), provider::kRemoteRead));
  fixed.descriptor_count = static_cast<uint16_t>(exposures.size());
  if (!request.out) return {};
  const endpoint::Buffer& out = call.seldom_.write().out = std::move(*request.out);
  endpoint::Buffer view{out.data, out.length_bytes, out.owner_id, out.hold, {}};
  const Status status = exposures.add(endpoint_, std::move(view), provider::kRemoteWrite);
  // A peer that can't write there leaves the result to be fetched into it.
  if (status.code() == StatusCode::kFailedPrecondition) return {};
  RRPC_RETURN_IF_ERROR(status);
  fixed.flags |= kOutFirst;
  call.out_offered_ = true;
  return {};
}

// Before it is: the server may be done with it before the sender's thread goes on.
inline void ClientSide::about_to_send(ClientCall& call) {
  call.stamps.mark(&CallStamps::sent);
  call.may_have_run_ = true;
}

inline void ClientSide::note_sent(ClientCall& call) {
  call.state_ = ClientCall::State::kSent;
  if (call.stream_ != nullptr) streams_.open(call.stream_);
}

static std::string encode_exposures(const Exposures& exposures, const RequestFixed& fixed) {
  std::vector<endpoint::Descriptor> list;
  if ((fixed.flags & kOutFirst) != 0) list.push_back(exposures.last());
  for (size_t i = 0; i < fixed.descriptor_count; ++i) list.push_back(exposures.descriptor(i));
  return encode_descriptors(list);
}

inline Status ClientSide::send_parts(ClientCall& call, std::span<const Bytes> parts) {
  const size_t length = total_bytes(parts);
  if (length > endpoint_.body_bytes_max()) return send_as_bulk(call, parts, length);
  if (queue_.empty() && endpoint_.can_send(kRequest)) {
    about_to_send(call);
    call.seldom_->exposures.send(endpoint_, kRequest, parts);
    note_sent(call);
    return {};
  }
  queue_request(call.id_, parts, length);
  return {};
}

// Of a request that exposes nothing: written to where the peer, the socket or the adapter reads it. False: it goes
// another way.
[[gnu::always_inline]] inline bool ClientSide::send_at_once(ClientCall& call, const RequestFixed& fixed,
                                                            const CallRequest& request) {
  if (!queue_.empty()) return false;
  const size_t length = sizeof(fixed) + request.method.size() + request.metadata.size() + request.payload.size();
  std::byte* body = endpoint_.begin_message(kRequest, length);
  if (body == nullptr) return false;
  call.stamps.mark(&CallStamps::registered);
  about_to_send(call);
  std::memcpy(body, &fixed, sizeof(fixed));
  body = append(body + sizeof(fixed), as_bytes(request.method));
  if (!request.metadata.empty()) body = append(body, request.metadata);
  append(body, request.payload);
  endpoint_.commit_message();
  note_sent(call);
  return true;
}

Status ClientSide::send_or_queue(ClientCall& call, RequestFixed& fixed, CallRequest& request) {
  Status status;
  if (exposes(request)) status = expose_all(call, request, fixed);
  call.stamps.mark(&CallStamps::registered);
  const Exposures& exposures = call.seldom_->exposures;
  const std::string descriptors = exposures.empty() ? "" : encode_exposures(exposures, fixed);
  const Bytes head = std::as_bytes(std::span(&fixed, 1));
  if (status.ok())
    status = send_parts(
        call, std::array{head, as_bytes(descriptors), as_bytes(request.method), request.metadata, request.payload});
  if (status.ok() && endpoint_.failed()) status = ended_;  // it broke in the sending
  exposed_bytes_ += call.seldom_->exposures.bytes();
  if (status.ok()) return {};
  close_exposures(call);
  call.drop_out();
  return status;
}

void ClientSide::queue_request(uint64_t call_id, std::span<const Bytes> parts, size_t length_bytes) {
  std::string body(length_bytes, '\0');
  join(parts, std::as_writable_bytes(std::span(body)));
  queue_.push_back({call_id, kRequest, std::move(body)});
}

Status ClientSide::start(const ClientCallRef& call_ref, CallRequest&& request, TimeNs now) {
  RRPC_RETURN_IF_ERROR(check_bounds(request));
  ClientCall& call = *call_ref;
  call.id_ = next_call_id_++;
  call.deadline_ = request.deadline;
  if (call.deadline_ != kNever) call.method_.assign(as_bytes(request.method));
  call.started_at_ = now;
  RequestFixed fixed;
  fixed.call_id = call.id_;
  fixed.method_bytes = static_cast<uint16_t>(request.method.size());
  fixed.metadata_bytes = static_cast<uint16_t>(request.metadata.size());
  fixed.flags = request.kind;
  fixed.timeout_ns = call.deadline_ == kNever ? -1 : std::max<TimeNs>(call.deadline_ - now, 0);
  if (request.kind != 0) call.stream_ = streams_.make(call.id_, true, request.kind, *this);
  const bool sent = !exposes(request) && send_at_once(call, fixed, request);
  if (!sent) RRPC_RETURN_IF_ERROR(send_or_queue(call, fixed, request));
  if (call.stream_ != nullptr && endpoint_.failed()) return ended_;  // items of others went with it, and broke it
  calls_.add(call.id_, call_ref);
  in_flight_.store(calls_.size(), std::memory_order_relaxed);
  earliest_deadline_ = std::min(earliest_deadline_, call.deadline_);
  endpoint_.tally(&endpoint::Counters::calls_started);
  if (!sent) flush(now);
  if (!queue_.empty()) endpoint_.tally(&endpoint::Counters::credit_waits);  // this one, at the queue's end
  return {};
}

Status ClientSide::send_as_bulk(ClientCall& call, std::span<const Bytes> parts, size_t length_bytes) {
  RRPC_ASSIGN_OR_RETURN(endpoint::PoolBlock block, endpoint_.allocate(length_bytes, endpoint::BlockKind::kShared));
  join(parts, {block.data(), length_bytes});
  endpoint_.tally(&endpoint::Counters::copies);
  endpoint_.tally(&endpoint::Counters::bytes_copied, static_cast<int64_t>(length_bytes));
  Exposures& exposures = call.seldom_.write().exposures;
  RRPC_RETURN_IF_ERROR(exposures.add_block(endpoint_, std::move(block)));
  const endpoint::Descriptor& descriptor = exposures.last();
  const BulkBody bulk{call.id_, descriptor.address, descriptor.length_bytes, descriptor.rkey, 0};
  queue_.push_back(
      {call.id_, kRequestBulk, encode_bulk(std::as_bytes(std::span(&bulk, 1)), descriptor), exposures.body(endpoint_)});
  return {};
}

void ClientSide::flush_some(TimeNs now) {
  done_.flush(endpoint_);
  cancel_.flush(endpoint_);
  while (!queue_.empty() && endpoint_.can_send(kRequest)) {
    QueuedRequest request = std::move(queue_.front());
    queue_.pop_front();  // before the send: one that fails clears the queue
    const ClientCallRef call = find(request.call_id);
    if (call != nullptr && call->deadline_ != kNever) {
      request.set_time_left(std::max<TimeNs>(call->deadline_ - now, 0));
      if (request.fetched_body != nullptr && endpoint_.seals() && !seal_body(*call, request)) return;
    }
    if (call != nullptr) about_to_send(*call);
    const Bytes part = as_bytes(request.body);
    if (call != nullptr)
      call->seldom_->exposures.send(endpoint_, request.type, {&part, 1});
    else
      endpoint_.send(request.type, {&part, 1});
    if (endpoint_.failed()) return;
    if (call != nullptr) note_sent(*call);
  }
}

// The time left has changed it. False: the connection has ended.
bool ClientSide::seal_body(ClientCall& call, QueuedRequest& request) {
  if (Status status = call.seldom_.write().exposures.seal_body(endpoint_); !status.ok())
    return endpoint_.close(status), false;
  request.body = encode_bulk(as_bytes(request.body).first(sizeof(BulkBody)), call.seldom_->exposures.last());
  return true;
}

void ClientSide::on_stream_idle(uint64_t call_id, TimeNs) {
  const ClientCallRef call = find(call_id);
  if (call == nullptr) return;
  // One that the connection's end has ended is still in this state, and keeps its status.
  if (call->state_ == ClientCall::State::kFetchingItems && !call->done()) complete(call, std::move(call->status_));
  if (call->state_ == ClientCall::State::kDraining) leave(call);
}

void ClientSide::on_stream_failed(uint64_t call_id, Status why, TimeNs) {
  if (const ClientCallRef call = find(call_id); call != nullptr) cancel(call, std::move(why));
}

Result<StreamRef> ClientSide::stream_of(uint64_t call_id) const {
  const ClientCallRef call = find(call_id);
  if (call != nullptr && call->stream_ != nullptr && call->state_ != ClientCall::State::kQueued) return call->stream_;
  return Status::protocol_error("an item or a window for call " + std::to_string(call_id) +
                                ", which has no streams under way");
}

// Ends a call whose result can't be fetched.
void ClientSide::give_up(const ClientCallRef& call, const Status& status) {
  call->blocks_.clear();
  finish_without_reply(call, status);
  if (call->stream_ != nullptr) streams_.stop(call->stream_);
  leave(call);
}

Status ClientSide::on_cancel_ack(Bytes body) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, parse_call_ids(body));
  for (const uint64_t id : ids) {
    if (id >= next_call_id_) return Status::protocol_error("an acknowledged cancel of a call that never was");
    const ClientCallRef call = find(id);
    // Otherwise its reply crossed the cancel and has ended it already.
    if (call == nullptr || call->state_ != ClientCall::State::kCancelling) continue;
    release(call);
    leave(call);
  }
  return {};
}

void ClientSide::cancel(const ClientCallRef& call, Status why) {
  if (call->done()) return;
  using enum ClientCall::State;
  const auto state = call->state_;
  if (state == kQueued) {
    std::erase_if(queue_, [&call](const QueuedRequest& request) { return request.call_id == call->id_; });
    release(call);
  }
  if (state == kSent) {
    call->state_ = kCancelling;
    cancel_.add(call->id_ | (why.code() == StatusCode::kDeadlineExceeded ? kDeadlineBit : 0));
  } else {
    call->state_ = kDraining;  // its reply is here
  }
  finish_without_reply(call, std::move(why));
  if (call->stream_ != nullptr) streams_.stop(call->stream_);
  if (call->transferring_) endpoint_.cancel_transfer(call->id_);
  if (state == kSent) return cancel_.flush(endpoint_);
  leave(call);
  done_.flush(endpoint_);
}

void ClientSide::refuse_new_calls(Status why) {
  refusal_ = std::move(why);
  std::vector<ClientCallRef> unsent;
  for (const QueuedRequest& request : queue_) unsent.push_back(find(request.call_id));
  for (const ClientCallRef& call : unsent) {
    if (call != nullptr) cancel(call, refusal_);
  }
}

void ClientSide::expire(TimeNs now) {
  if (now < earliest_deadline_) return;
  std::vector<ClientCallRef> expired;
  earliest_deadline_ = kNever;
  calls_.for_each([&](const ClientCallRef& call) {
    if (call->done()) return;
    if (call->deadline_ <= now)
      expired.push_back(call);
    else
      earliest_deadline_ = std::min(earliest_deadline_, call->deadline_);
  });
  for (const ClientCallRef& call : expired) cancel(call, call->deadline_passed());
}

void ClientSide::fail_all(const Status& status) {
  ended_ = status;
  earliest_deadline_ = kNever;
  queue_.clear();
  done_.clear();
  cancel_.clear();
  std::vector<ClientCallRef> calls;
  calls_.for_each([&](const ClientCallRef& call) { calls.push_back(call); });
  // All of them first: to stop a stream's reads may deliver what else has ended.
  for (const ClientCallRef& call : calls) {
    release(call);
    finish_without_reply(call, status);
  }
  for (const ClientCallRef& call : calls) {
    if (call->stream_ != nullptr) streams_.stop(call->stream_);
    // Its landing memory belongs to the device until the transfer is reported finished.
    if (call->transferring_)
      call->state_ = ClientCall::State::kDraining;
    else
      erase(call);
  }
  done_.clear();
}

}  // namespace rrpc::rpc
