// The answering end's calls with streams: no REPLY before the last item has gone, neither it nor a CANCEL_ACK while an
// item of the client's is being read, and items that the client may be reading stay until its DONE.
#include <utility>

#include "rpc/client_side.h"
#include "rpc/server_side.h"

namespace rrpc::rpc {

Result<StreamRef> ServerSide::stream_of(uint64_t call_id) {
  if (call_id > last_call_id_)
    return Status::protocol_error("an item or a window for call " + std::to_string(call_id) + ", which never came");
  const ServerCallRef call = find(call_id);
  if (call == nullptr || call->refused_) return StreamRef();  // it crossed the call's end
  // The request is being fetched, and items need not wait for that.
  const bool to_come = call->state_ == ServerCall::State::kFetchingBody || call->state_ == ServerCall::State::kWaiting;
  if (call->stream_ == nullptr && to_come && !call->opened_)
    call->stream_ = streams_.make(call_id, false, kClientStreams, *this);
  if (call->stream_ != nullptr) return call->stream_;
  return Status::protocol_error("an item or a window for call " + std::to_string(call_id) + ", which has no streams");
}

Status ServerSide::open_stream(ServerCall& call) {
  const bool early_items = call.stream_ != nullptr;
  if (early_items && (call.kind_ & kClientStreams) == 0)
    return Status::protocol_error("an item of call " + std::to_string(call.id_) + ", which has none from that end");
  if (call.kind_ == 0) return {};
  if (!streams_.peer_streams()) return Status::protocol_error("a call with streams from a peer without a window");
  if (early_items)
    streams_.let_send(call.stream_, (call.kind_ & kServerStreams) != 0);
  else
    call.stream_ = streams_.make(call.id_, false, call.kind_, *this);
  return {};
}

void ServerSide::reply_after_items(const ServerCallRef& call, Reply reply, TimeNs now) {
  if (endpoint_.failed()) return erase(call);
  if (call->given_up_by_client_) {
    call->state_ = ServerCall::State::kCancelled;
    return end_cancelled(call, now);
  }
  if (call->state_ != ServerCall::State::kRunning) return;  // answered for want of memory for an item
  endpoint_.tally(&endpoint::Counters::calls_served);
  if (Status status = check_metadata(reply.metadata.size(), options_, "the reply"); !status.ok())
    reply = Reply{.status = call->outcome_ = std::move(status)};
  if (!reply.status.ok()) reply.buffers.clear();
  reply.out_index = kNoOutIndex;
  std::string body;
  if (Status status = compose(*call, reply, false, body); !status.ok()) compose_error(*call, std::move(status), body);
  call->seldom_.write().pending_reply = std::move(body);
  call->state_ = ServerCall::State::kEnding;
  streams_.stop_receiving(call->stream_);
  streams_.end(call->stream_, {});
  streams_.flush();  // the last items may wait for more to share a message with
  if (!endpoint_.failed()) end_answered(call, now);
}

void ServerSide::end_answered(const ServerCallRef& call, TimeNs now) {
  if (call->state_ != ServerCall::State::kEnding) return;
  if (!Streams::idle(call->stream_) || !Streams::flushed(call->stream_)) return;
  send_reply(call, std::exchange(call->seldom_.write().pending_reply, {}), now);
}

void ServerSide::cancel_streams(const ServerCallRef& call, TimeNs now) {
  using enum ServerCall::State;
  if (call->state_ == kLeased) return;  // the reply itself ends the client's wait
  const bool fetching = call->state_ == kFetchingBody || call->state_ == kFetching;
  call->cancelled_ = call->given_up_by_client_ = call->ack_owed_ = true;
  if (call->state_ == kReplying)
    std::erase_if(queue_, [&call](const QueuedReply& queued) { return queued.call == call; });
  if (call->state_ == kEnding || call->state_ == kReplying || (call->state_ == kRunning && events_.take_back(call))) {
    call->seldom_.write().pending_reply.clear();
    release(*call);
    call->state_ = kCancelled;
  }
  if (call->state_ == kWaiting) {
    stop_waiting(*call);
    call->state_ = kCancelled;
  }
  streams_.end(call->stream_, call->late_ ? deadline_exceeded("the call's deadline has passed")
                                          : cancelled("the client gave the call up"));
  streams_.stop(call->stream_);
  if (fetching) endpoint_.cancel_transfer(call->id_ | kServerCookie);
  tell_given_up(*call);
  end_cancelled(call, now);
}

// Of a call that its client gave up, whenever something of it has ended.
void ServerSide::end_cancelled(const ServerCallRef& call, TimeNs now) {
  using enum ServerCall::State;
  if (!Streams::idle(call->stream_) || (call->state_ != kRunning && call->state_ != kCancelled)) return;
  if (std::exchange(call->ack_owed_, false)) {
    cancel_acks_.add(call->id_);
    call->expires_at_ = deadline_after(now, options_.lease_timeout);
    if (Streams::exposes(call->stream_)) earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
  }
  if (call->state_ == kCancelled && !Streams::exposes(call->stream_)) erase(call);
}

void ServerSide::on_stream_idle(uint64_t call_id, TimeNs now) {
  const ServerCallRef call = find(call_id);
  if (call == nullptr || endpoint_.failed()) return;
  if (call->given_up_by_client_) return end_cancelled(call, now);
  end_answered(call, now);
}

void ServerSide::on_stream_failed(uint64_t call_id, Status why, TimeNs now) {
  const ServerCallRef call = find(call_id);
  if (call == nullptr) return;
  streams_.end(call->stream_, why);
  streams_.stop(call->stream_);
  if (call->state_ == ServerCall::State::kRunning) return answer_for_handler(call, std::move(why), now);
  call->seldom_.write().failure = std::move(why);  // once its arguments are here
}

// The handler, if one has the call, is told as of a cancel; what it replies is dropped.
void ServerSide::answer_for_handler(const ServerCallRef& call, Status why, TimeNs now) {
  const bool waited = events_.take_back(call);
  if (waited) drop_arguments(*call);
  call->outcome_ = why;
  reply_after_items(call, {.status = std::move(why), .not_executed = waited}, now);
  call->cancelled_ = true;
  tell_given_up(*call);
}

// True: DONE is for items that the client had when it gave the call up.
Result<bool> ServerSide::take_done(const ServerCallRef& call, TimeNs now) {
  if (!call->given_up_by_client_) return false;
  if (call->ack_owed_)
    return Status::protocol_error("a DONE for call " + std::to_string(call->id_) + " before its CANCEL_ACK");
  streams_.release(call->stream_);
  end_cancelled(call, now);
  return true;
}

bool ServerSide::leased(const ServerCall& call) const {
  if (call.state_ == ServerCall::State::kLeased) return true;
  return call.given_up_by_client_ && !call.ack_owed_ && Streams::exposes(call.stream_);
}

}  // namespace rrpc::rpc
