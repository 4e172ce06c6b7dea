// The calling half of a session: call table, deadlines, cancellation, arguments exposed until the reply,
// results fetched and then released with DONE. Not thread-safe: the driver holds the connection's mutex.
//
// A unary call at this end, in the states of ClientCall::State. Before start() it is new, and from kEnded on it isn't
// in calls_; kFetching* is kFetching or kFetchingBody. A credit is for the first in queue_. A cancel is the caller's,
// expire()'s at the deadline, or, in kQueued, that of a GOAWAY. To expose is to open arguments and out= memory to the
// server, to revoke (release()) is to close them. A step to kCancelling, kDraining or kEnded makes the call done() if
// it wasn't, and one to kEnded sends DONE if leased_ says that the server keeps results for it.
//
// state         | event                      | next state        | does
// --------------+----------------------------+-------------------+-----------------------------------------------------
// new           | start(), with a credit     | kSent             | exposes, sets may_have_run_, sends REQUEST
// new           | start(), without, or long  | kQueued           | exposes; REQUEST or REQUEST_BULK waits in queue_
// kQueued       | a credit                   | kSent             | writes the time left, sets may_have_run_, sends
// kQueued       | cancel                     | kEnded            | leaves queue_, revokes: not_executed() is true
// kSent         | REPLY, error or no buffers | kEnded            | revokes; kNotExecuted clears may_have_run_
// kSent         | REPLY with buffers         | kFetching         | revokes; READs those not in out= memory already
// kSent         | REPLY_BULK                 | kFetchingBody     | revokes, sets leased_; READs the body
// kSent         | either, can't be taken     | kEnded            | revokes; give_up(): an error of the call
// kSent         | cancel                     | kCancelling       | sends CANCEL; what is exposed stays exposed
// kFetchingBody | READ ended well            | kSent             | at once, accept_reply() takes the body as a REPLY
// kFetching     | READ ended well            | kEnded            | the call has succeeded
// kFetching*    | READ failed                | kEnded            | give_up(): Unavailable
// kFetching*    | cancel                     | kDraining         | cancels the READ; its memory stays the device's
// kCancelling   | CANCEL_ACK                 | kEnded            | revokes
// kCancelling   | REPLY or REPLY_BULK        | kEnded            | revokes; READs nothing
// kDraining     | READ ended                 | kEnded            | gives back what was fetched
// each of these | the connection failed      | kEnded, kDraining | revokes; kDraining if transferring_; no DONE
// any other     | REPLY or REPLY_BULK        | as above          | a protocol error, which ends the connection
//
// start() keeps nothing of a call that it gives an error for, but leaves may_have_run_ set if the connection broke
// while the REQUEST was sent. A CANCEL_ACK is ignored in any state but kCancelling. A call with streams differs after
// its reply: it is in kFetchingItems, or in kDraining, until no item is being read, and it sends DONE also if its items
// had exposed memory. stream.h has the table of those.
//
// A call runs at most once (Birrell and Nelson, "Implementing Remote Procedure Calls", 1984): its request is sent once,
// under an id of its own, and without a reply it has run once or not at all. Where not_executed() is true it certainly
// has not run, never sent or refused with kNotExecuted: to repeat it is safe. A message without a credit waits here,
// since each credit is a receive that the peer has posted. The server may touch arguments and out= memory until REPLY,
// REPLY_BULK or CANCEL_ACK; what a READ lands in is the device's until the READ ends. Results are leased: the server
// keeps them until DONE, but no longer than its lease_timeout.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/seldom.h"
#include "base/small_bytes.h"
#include "rpc/call_table.h"
#include "rpc/exposures.h"
#include "rpc/landing.h"
#include "rpc/messages.h"
#include "rpc/options.h"
#include "rpc/outbox.h"
#include "rpc/streams.h"

namespace rrpc::rpc {

// When a traced call came to where it is; 0: it never did.
struct CallStamps {
  TimeNs (*clock)() = nullptr;  // null: the call isn't traced
  TimeNs started = 0;           // the caller's
  TimeNs registered = 0;        // arguments exposed
  TimeNs sent = 0;              // a credit was there
  TimeNs replied = 0;           // the reply is here
  TimeNs fetched = 0;           // and its results: the call has ended
  TimeNs taken = 0;             // the caller's again

  void mark(TimeNs CallStamps::* phase) {
    if (clock != nullptr && this->*phase == 0) this->*phase = clock();
  }
};

// One call as its caller sees it. Everything but done() is valid only once done() is true.
class ClientCall {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  const Status& status() const { return status_; }
  const std::string& details() const { return seldom_->details; }
  const std::string& metadata() const { return seldom_->metadata; }  // of the reply, or of the error
  // Of a call that failed: it never left here, or no handler saw it there. Running it again can't run it twice.
  bool not_executed() const { return !may_have_run_; }
  Bytes payload() const { return seldom_->body_block ? seldom_->block_payload : payload_.view(); }
  // One per result buffer; empty where the buffer went into the caller's out= memory.
  std::vector<endpoint::ReceivedBlock>& blocks() { return blocks_; }
  TimeNs deadline() const { return deadline_; }
  const StreamRef& stream() const { return stream_; }  // null: a unary call
  Status deadline_passed() const;                      // names the method and its timeout

  CallStamps stamps;  // the clock is set before the call starts

  // The driver's: a thread sleeps for this call; run when the call ends.
  std::atomic<bool> watched{false};
  std::function<void()> on_done;

 private:
  friend class ClientSide;
  enum class State : uint8_t {
    kQueued,
    kSent,
    kFetchingBody,
    kFetching,
    kFetchingItems,
    kCancelling,
    kDraining,
    kEnded
  };

  struct SeldomUsed {
    Exposures exposures;             // what it has open to the server
    endpoint::Buffer out;            // the caller's memory for one result buffer
    endpoint::PoolBlock body_block;  // a reply too long for a slot
    Bytes block_payload;
    std::string details;
    std::string metadata;
  };

  // Sent, and nothing beside its request is the peer's to touch or to wait for.
  bool is_small() const { return state_ == State::kSent && stream_ == nullptr && seldom_.written() == nullptr; }
  void drop_out() {
    if (SeldomUsed* const used = seldom_.written()) used->out = {};
  }

  uint64_t id_ = 0;
  State state_ = State::kQueued;
  TimeNs deadline_ = kNever;
  TimeNs started_at_ = 0;
  SmallBytes<48> method_;     // of a call with a deadline, whose error names it
  bool out_offered_ = false;  // the server may write there
  bool may_have_run_ = false;
  StreamRef stream_;
  bool transferring_ = false;  // the reply's body or buffers
  bool leased_ = false;        // the server keeps results for us until DONE
  SmallBytes<128> payload_;
  std::vector<endpoint::ReceivedBlock> blocks_;
  Status status_;
  Seldom<SeldomUsed> seldom_;
  std::atomic<bool> done_{false};
};
using ClientCallRef = std::shared_ptr<ClientCall>;

struct CallRequest {
  std::string_view method;
  Bytes payload;
  std::vector<endpoint::Buffer> buffers;
  std::optional<endpoint::Buffer> out;
  TimeNs deadline = kNever;
  Bytes metadata = {};
  uint8_t kind = 0;  // of RequestFlag, which ends stream items
};

class ClientSideEvents {
 public:
  virtual ~ClientSideEvents() = default;
  virtual void on_call_done(const ClientCallRef& call) = 0;
};

class ClientSide : private StreamOwner {
 public:
  ClientSide(endpoint::Endpoint& endpoint, Streams& streams, const SessionOptions& options, ClientSideEvents& events)
      : endpoint_(endpoint), streams_(streams), options_(options), events_(events) {}

  // Sends the call, or queues it until there are credits. After an error the call isn't under way, and on_call_done()
  // isn't called for it. The server may have the request all the same, where the connection broke while it was sent:
  // call->not_executed() is false then.
  Status start(const ClientCallRef& call, CallRequest&& request, TimeNs now);
  // Ends the call for its caller at once; its memory is given back when the peer can't touch it any more.
  void cancel(const ClientCallRef& call, Status why);

  Status on_reply(Bytes body);
  Status on_reply_bulk(Bytes body);
  Status on_cancel_ack(Bytes body);
  Status on_transfer_finished(uint64_t call_id, provider::WcStatus status);
  // What items or a window for the call are for. Null: nothing any more.
  Result<StreamRef> stream_of(uint64_t call_id) const;
  void fail_all(const Status& status);
  // The peer takes no new calls: those that were never sent end, with `why`.
  void refuse_new_calls(Status why);

  void flush(TimeNs now) {
    if (!done_.empty() || !cancel_.empty() || !queue_.empty()) flush_some(now);
  }
  void expire(TimeNs now);
  TimeNs next_deadline() const { return earliest_deadline_; }
  uint64_t oldest_call() const { return calls_.lowest_id(); }  // of those under way, by id; 0: there is none
  uint64_t newest_call() const { return next_call_id_ - 1; }   // that was begun; 0: none was
  // From any thread.
  size_t calls_in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

 private:
  struct QueuedRequest {
    uint64_t call_id;
    uint8_t type;
    std::string body;
    std::byte* fetched_body = nullptr;  // what the body leads to, in memory that the call keeps

    void set_time_left(TimeNs timeout_ns) {
      auto* const fixed = fetched_body != nullptr ? fetched_body : reinterpret_cast<std::byte*>(body.data());
      std::memcpy(fixed + offsetof(RequestFixed, timeout_ns), &timeout_ns, sizeof(timeout_ns));
    }
  };

  void flush_some(TimeNs now);
  static bool exposes(const CallRequest& request) { return !request.buffers.empty() || request.out; }
  Status check_bounds(const CallRequest& request) const;
  Status check_exposed(const CallRequest& request) const;
  Status expose_all(ClientCall& call, CallRequest& request, RequestFixed& fixed);
  [[gnu::noinline]] Status send_or_queue(ClientCall& call, RequestFixed& fixed, CallRequest& request);
  bool send_at_once(ClientCall& call, const RequestFixed& fixed, const CallRequest& request);
  Status send_parts(ClientCall& call, std::span<const Bytes> parts);
  void queue_request(uint64_t call_id, std::span<const Bytes> parts, size_t length_bytes);
  bool seal_body(ClientCall& call, QueuedRequest& request);
  Status send_as_bulk(ClientCall& call, std::span<const Bytes> parts, size_t length_bytes);
  bool take_small_result(Bytes body);
  Status accept_reply(const ClientCallRef& call, Bytes body);
  Status fetch(const ClientCallRef& call, const ParsedReply& reply);
  Status prepare_out(const ClientCall& call, const ParsedReply& reply, OutTarget& out);
  static void about_to_send(ClientCall& call);
  void note_sent(ClientCall& call);
  void give_up(const ClientCallRef& call, const Status& status);
  // The reply is here as a whole: the call ends once its items are, too.
  void complete(const ClientCallRef& call, Status outcome);
  // Of a call that has ended for its caller: it goes once nothing is being read for it.
  void leave(const ClientCallRef& call);
  void on_stream_idle(uint64_t call_id, TimeNs now) override;
  void on_stream_failed(uint64_t call_id, Status why, TimeNs now) override;
  void close_exposures(ClientCall& call) {
    ClientCall::SeldomUsed* const used = call.seldom_.written();
    if (used == nullptr) return;
    exposed_bytes_ -= std::min(exposed_bytes_, used->exposures.bytes());
    used->exposures.revoke_all(endpoint_);
  }
  // The server has read what it wanted of the arguments and the items.
  void release(const ClientCallRef& call) {
    close_exposures(*call);
    if (call->stream_ != nullptr) streams_.peer_ended(call->stream_);
  }
  void finish(const ClientCallRef& call, Status status);
  void finish_without_reply(const ClientCallRef& call, Status why);
  void erase(const ClientCallRef& call);
  ClientCallRef find(uint64_t call_id) const { return calls_.find(call_id); }

  endpoint::Endpoint& endpoint_;
  Streams& streams_;
  const SessionOptions& options_;
  ClientSideEvents& events_;
  uint64_t next_call_id_ = 1;
  size_t exposed_bytes_ = 0;
  Status refusal_;
  Status ended_;  // why the connection is gone, as callers are told
  CallTable<ClientCallRef> calls_;
  std::atomic<size_t> in_flight_{0};
  std::deque<QueuedRequest> queue_;
  CallIdOutbox done_{kDone};
  CallIdOutbox cancel_{kCancel};
  TimeNs earliest_deadline_ = kNever;  // a lower bound
};

inline void ClientSide::erase(const ClientCallRef& call) {
  call->state_ = ClientCall::State::kEnded;
  call->drop_out();
  calls_.erase(call->id_);
  in_flight_.store(calls_.size(), std::memory_order_relaxed);
}

inline void ClientSide::leave(const ClientCallRef& call) {
  if (call->state_ == ClientCall::State::kEnded) return;
  call->state_ = ClientCall::State::kDraining;
  if (call->transferring_ || !Streams::idle(call->stream_)) return;
  if (!call->status_.ok()) call->blocks_.clear();
  // A server that waits for the DONE of a plain result looks for it now and then.
  if (call->leased_ || Streams::saw_exposed(call->stream_)) done_.add(call->id_, call->stream_ != nullptr);
  erase(call);
}

inline void ClientSide::complete(const ClientCallRef& call, Status outcome) {
  if (!Streams::idle(call->stream_)) {
    call->state_ = ClientCall::State::kFetchingItems;
    call->status_ = std::move(outcome);
    return;
  }
  finish(call, std::move(outcome));
  leave(call);
}

// Transfer cookies: the two halves of a session share one endpoint.
constexpr uint64_t kServerCookie = 1ULL << 63;

}  // namespace rrpc::rpc
