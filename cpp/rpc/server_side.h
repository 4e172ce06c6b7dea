// The answering half of a session: arguments fetched before the handler sees the call, results leased until
// the reader's DONE, cancels acknowledged once nothing of the client's memory is being read. Not
// thread-safe: the driver holds the connection's mutex.
//
// A unary call at this end, in the states of ServerCall::State. It is new while its REQUEST or REQUEST_BULK is taken
// in, and gone when erase() has taken it out of calls_; kFetching* is kFetching or kFetchingBody. take_back() is the
// driver's: true if no handler has the call, nor ever will. To revoke (release()) is to close the results to the
// client.
//
// state                | event                      | next state          | does
// ---------------------+----------------------------+---------------------+--------------------------------------------
// new, kFetching       | all arguments are here     | kRunning            | on_request(): the driver has the call
// new, kWaiting        | landing memory is there    | kFetching*          | READs a REQUEST_BULK's body, or the buffers
// new                  | there is none now          | kWaiting            | keeps its message only, and landing_ticket
// no handler has it    | refuse()                   | kReplying           | drops the arguments; an error, kNotExecuted
// kFetchingBody        | READ ended well            | as from new         | admit() decides anew, with the whole body
// kFetching*           | CANCEL                     | the same            | sets cancelled_, cancels the READ
// kFetching*           | READ failed, or cancelled_ | gone                | CANCEL_ACK if cancelled_
// kRunning             | reply()                    | kReplying, gone     | exposes results; gone if small and sent
// kRunning             | reply(), fits out= memory  | kWriting            | WRITEs it; the REPLY is pending_reply
// kRunning, cancelled_ | reply()                    | gone                | drops the reply
// kRunning             | CANCEL                     | kRunning, gone      | cancelled_, CANCEL_ACK; gone if take_back()
// kRunning             | the deadline               | kReplying, kRunning | take_back(): error, kNotExecuted; else
// overdue_ kWriting             | WRITE ended                | kReplying, gone     | REPLY with kOutWritten; gone if it
// failed kReplying            | a credit                   | kLeased, gone       | sends the reply; gone if nothing is
// exposed kWaiting, kReplying  | CANCEL                     | gone                | drops the ticket or the reply;
// CANCEL_ACK kWriting, kLeased    | CANCEL                     | the same            | nothing: the REPLY ends the
// client's wait kLeased              | DONE, or the lease's end   | gone                | revokes the results each of
// these        | the connection failed      | gone                | revokes; a READ or WRITE has to end first
//
// refuse() is for a call that is too large, one too many, over the rate, without memory, during a drain, or in kWaiting
// at its deadline; it sets refused_. overdue_ is set kCancelGrace after the deadline; on_given_up runs then, or at the
// CANCEL. An OK reply after the deadline becomes DeadlineExceeded, and any reply once overdue_ is set. A DONE before
// kLeased is a protocol error; a CANCEL or a DONE of a call that is gone is ignored. A call with streams differs: out=
// memory is never written, the REPLY waits in kEnding for items, a CANCEL leads to kCancelled, and the CANCEL_ACK waits
// until no item is being read; items that are exposed then stay so until DONE or the lease's end. stream.h
// has the table of those.
//
// A call runs at most once (Birrell and Nelson, "Implementing Remote Procedure Calls", 1984): check_new_id() takes only
// rising ids, so that a repeated request is a protocol error and never runs. kNotExecuted says that no handler has seen
// the call, so that the client may repeat it. Each credit is a receive that the client has posted: a reply without one
// waits in queue_, and too many of them make backed_up() true. The client's memory is its own again with REPLY,
// REPLY_BULK or CANCEL_ACK, since no READ or WRITE of it is under way then. Results stay exposed until DONE; the lease
// (lease_timeout) bounds that where a client never sends it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/recycled.h"
#include "base/recycler.h"
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

class ServerCall : public Recycled<ServerCall> {
 public:
  std::string_view method() const { return method_; }
  Bytes metadata() const { return metadata_; }
  Bytes payload() const { return payload_; }
  // Of RequestFlag, which sides stream items; 0: a unary call.
  uint8_t kind() const { return kind_; }
  std::vector<endpoint::ReceivedBlock>& blocks() { return blocks_; }
  const StreamRef& stream() const { return stream_; }  // null: a unary call
  TimeNs deadline() const { return deadline_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Cancelled, or past its deadline, whether the client has said so or not: nobody waits for the reply.
  bool given_up() const { return cancelled() || overdue_.load(std::memory_order_relaxed); }
  // Given up because its deadline has passed. Where the client alone says so it may be early, by the time that the
  // request was on its way, but not by more than kEarlyMax: a client isn't trusted to have others wait for longer.
  bool late(TimeNs now) const;
  // Once the handler has answered: why the client doesn't get that answer; OK: it does.
  const Status& outcome() const { return outcome_; }
  size_t out_bytes() const { return out_bytes_; }
  TimeNs arrived_at() const { return arrived_at_; }
  TimeNs ready_at() const { return ready_at_; }  // when the arguments were here
  // The driver's: to take in a fetch that was over within one poll, which began at ready_at().
  void set_ready_at(TimeNs now) { ready_at_ = now; }
  bool fetched() const { return seldom_->body_block || !blocks_.empty(); }

  uint64_t ticket = 0;  // the driver's: its place among the calls that wait for a worker
  // Runs once when a running call is given up, under the mutex; until it is answered.
  void on_given_up(std::function<void()> tell) { seldom_.write().on_given_up.push_back(std::move(tell)); }
  void forget_given_up() {
    if (SeldomUsed* const used = seldom_.written()) used->on_given_up.clear();
  }

 private:
  friend class ServerSide;
  enum class State : uint8_t {
    kWaiting,  // for landing memory: nothing of the client's is being read
    kFetchingBody,
    kFetching,
    kRunning,
    kWriting,
    kEnding,  // answered, while items are on their way
    kReplying,
    kLeased,
    kCancelled,  // with streams, and no handler has it any more
  };

  uint64_t id_ = 0;
  State state_ = State::kRunning;
  TimeNs deadline_ = kNever;
  TimeNs arrived_at_ = 0;
  TimeNs ready_at_ = 0;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> overdue_{false};
  std::atomic<bool> late_{false};  // cancelled_, because its deadline had passed
  Status outcome_;
  uint8_t kind_ = 0;
  size_t out_bytes_ = 0;      // of seldom_->out: handlers ask, without the mutex
  uint32_t invalidates_ = 0;  // a key of the client's memory, which the reply closes; 0: none
  size_t queued_bytes_ = 0;   // of body_, and of a reply that waits for credits
  SmallBytes<192> body_;      // what method_, metadata_ and payload_ point into, or seldom_->body_block
  std::string_view method_;
  Bytes metadata_;
  Bytes payload_;
  std::vector<endpoint::ReceivedBlock> blocks_;
  StreamRef stream_;
  struct SeldomUsed {
    BulkBody bulk;                   // where a request too long for a slot is; its seal is in body_
    endpoint::PoolBlock body_block;  // that request
    uint64_t landing_ticket = 0;     // while it waits
    Charge landed;                   // until it is answered: then what the handler keeps is its own
    provider::RemoteRange out;       // out= memory of the client's; no bytes: none
    endpoint::Buffer out_source;
    Exposures exposures;        // the results
    Charge exposed;             // for them
    std::string pending_reply;  // waits for the write into out= memory, or for items
    Status failure;             // why it will be refused when its arguments are here
    std::vector<std::function<void()>> on_given_up;
  };
  Seldom<SeldomUsed> seldom_;
  bool refused_ = false;             // before its streams were known
  bool given_up_by_client_ = false;  // of calls with streams, and of those
  bool ack_owed_ = false;            // while items are being read
  bool opened_ = false;              // it counted for the rate, and its streams are known
  bool unread_ = false;              // its results are exposed, and were not fetched yet
  TimeNs expires_at_ = kNever;       // the deadline, or the lease's end
};
using ServerCallRef = RecycledRef<ServerCall>;

struct Reply {
  Status status = {};
  std::string_view message_details = {};  // of an error
  Bytes payload = {};
  std::vector<endpoint::Buffer> buffers = {};
  uint16_t out_index = kNoOutIndex;
  Bytes metadata = {};
  bool not_executed = false;  // by any handler: refused before
};

// Why a call is refused, and after how long the client may make it again; 0: that isn't known.
struct Refusal {
  Status why = {};
  int64_t retry_after_ms = 0;
};

enum class Asked : uint8_t {
  kBeforeMethod,  // that isn't known yet, and is asked about later
  kOnce,          // if it isn't refused the call is one of those that the rate allows
  kAgain,         // it counts for no rate: it did when it came and its body is fetched again, or it won't run anyway
};

class ServerSideEvents {
 public:
  virtual ~ServerSideEvents() = default;
  // Why a call is refused: the peer may not make it, there is no room for it, or it is over the rate that is allowed.
  // Asked before its arguments are fetched. Of no method: whether the peer may call any, and so on.
  virtual Refusal why_not(std::string_view method, Asked asked, TimeNs now) {
    (void)method, (void)asked, (void)now;
    return {};
  }
  // The arguments are here; answer with ServerSide::reply() or refuse(), from any thread, at any time.
  virtual void on_request(const ServerCallRef& call) = 0;
  // backed_up() has become false.
  virtual void on_replies_taken() {}
  // The client gave the call up, or its deadline has passed. True: no handler has it, nor ever will.
  virtual bool take_back(const ServerCallRef& call) {
    (void)call;
    return false;
  }
};

// Of a call that no handler has seen.
inline Reply waited_too_long() {
  return {.status = deadline_exceeded("no worker was free before its deadline"), .not_executed = true};
}

class ServerSide : private StreamOwner {
 public:
  ServerSide(endpoint::Endpoint& endpoint, Streams& streams, const SessionOptions& options, const Shares& shares,
             ServerSideEvents& events)
      : endpoint_(endpoint), streams_(streams), options_(options), shares_(shares), events_(events) {}

  // Never fails for the caller: what can't be sent becomes an error reply, and what the client no longer
  // wants is dropped.
  void reply(const ServerCallRef& call, Reply reply, TimeNs now);
  // In place of a reply, before any handler has seen the call.
  void refuse(const ServerCallRef& call, Status why, TimeNs now) { refuse(call, Refusal{std::move(why)}, now); }
  void refuse(const ServerCallRef& call, Refusal refusal, TimeNs now);

  Status on_request(Bytes body, TimeNs now);
  Status on_request_bulk(Bytes body, TimeNs now);
  Status on_cancel(Bytes body, TimeNs now);
  Status on_done(Bytes body, TimeNs now);
  // What items or a window for the call are for. Null: nothing any more.
  Result<StreamRef> stream_of(uint64_t call_id);
  Status on_transfer_finished(uint64_t call_id, provider::WcStatus status, TimeNs now);
  void fail_all();
  void refuse_new_calls(Status why) { refusal_ = std::move(why); }

  void flush(TimeNs now) {
    if (!cancel_acks_.empty() || !queue_.empty() || backed_up_) flush_some(now);
  }
  // Ends leases, and calls that still wait for a worker at their deadline; handlers at work are told of theirs.
  void expire(TimeNs now);
  // It has been looked for DONE, for which a peer need not wake this end.
  void looked_for_done(TimeNs now);
  TimeNs next_expiry() const {
    return unread_ == 0 ? earliest_expiry_ : std::min(earliest_expiry_, next_look_for_done());
  }
  // Results that the client hasn't said it has read: its DONE may be there.
  bool has_unread() const { return unread_ > 0; }
  // Whether this end is to be woken for DONE: others may wait for the memory of results.
  bool awaits_done() const;
  size_t calls_under_way() const { return calls_.size(); }
  // The client leaves so many replies unread that no handler should begin another of its calls. Needs no mutex.
  bool backed_up() const { return backed_up_.load(); }
  // Of those, the ones answered: their results are on the way to the client, or there to be fetched.
  size_t results_under_way() const;

 private:
  static constexpr TimeNs kLookForDoneMin = 20 * kMillisecond;  // after a result; then after twice as long each time
  static constexpr size_t kCallBytes = sizeof(ServerCall) + sizeof(ServerCall::SeldomUsed);
  struct QueuedReply {
    ServerCallRef call;
    uint8_t type;
    std::string body;
  };

  void flush_some(TimeNs now);
  Status admit(const ServerCallRef& call, Bytes body, TimeNs now);
  static void take_in(ServerCall& call, const RequestFixed& fixed, const RequestBody& parts);
  bool let_in(const ServerCallRef& call, Asked asked, TimeNs now);
  void run(const ServerCallRef& call, TimeNs now);
  Status why_unwanted(const ServerCall& call, TimeNs now) const;
  void drop_unwanted(ServerCall& call, Reply& reply, TimeNs now) const;
  // server_landing.cc
  Status fetch_arguments(const ServerCallRef& call, std::span<const endpoint::Descriptor> descriptors, TimeNs now);
  void start_arguments(const ServerCallRef& call, std::span<const endpoint::Descriptor> descriptors, TimeNs now);
  void fetch_body(const ServerCallRef& call, size_t bytes, TimeNs now);
  void start_body(const ServerCallRef& call, TimeNs now);
  void await_landing(const ServerCallRef& call, size_t bytes, std::function<void(TimeNs)> go, bool first = false);
  void stop_waiting(ServerCall& call) {
    ServerCall::SeldomUsed* const used = call.seldom_.written();
    if (used != nullptr && used->landing_ticket != 0) shares_.landing.withdraw(std::exchange(used->landing_ticket, 0));
  }
  // The message of a call, while it waits for memory, for a worker, or for its handler to end. False: no room for it.
  bool queue_body(ServerCall& call, size_t bytes) {
    bytes += kCallBytes;
    const bool has_room = shares_.queued.add(bytes);
    if (!has_room) shares_.queued.add_anyway(bytes = kCallBytes);
    call.queued_bytes_ += bytes;
    return has_room;
  }
  Status queue_is_full() const;
  Refusal why_refused(std::string_view method, Asked asked, TimeNs now) const;
  [[gnu::cold]] Refusal refused_anyway(std::string_view method, Status why, TimeNs now) const;
  Refusal why_unfit(ServerCall& call, Asked asked, TimeNs now) const;
  void hand_over(const ServerCallRef& call, TimeNs now);
  static void drop_arguments(ServerCall& call);
  static void tell_given_up(ServerCall& call);
  Status check_new_id(uint64_t call_id);
  Status compose(ServerCall& call, Reply& reply, bool out_written, std::string& body);
  Status expose_results(ServerCall& call, Reply& reply, bool out_written,
                        std::vector<endpoint::Descriptor>& descriptors);
  Result<std::vector<endpoint::TransferSegment>> out_segments(const endpoint::Buffer& source,
                                                              const provider::RemoteRange& out);
  bool start_out_write(const ServerCallRef& call, Reply& reply);
  Status charge_exposed(ServerCall& call, size_t bytes);
  void compose_error(ServerCall& call, Status status, std::string& body);
  // One of the ranges that the call has opened to this end. The reply closes the first that is told; the client the
  // others.
  void close_by_reply(ServerCall& call, uint32_t rkey) const {
    if (call.invalidates_ == 0 && endpoint_.invalidates()) call.invalidates_ = rkey;
  }
  void send_reply(const ServerCallRef& call, std::string body, TimeNs now);
  bool send_inline(ServerCall& call, const Reply& reply);
  [[gnu::noinline]] void reply_otherwise(const ServerCallRef& call, Reply& reply, TimeNs now);
  void sent(const ServerCallRef& call, TimeNs now);
  TimeNs next_look_for_done() const;
  void note_unread(ServerCall& call);
  void note_read(ServerCall& call) {
    if (!std::exchange(call.unread_, false)) return;
    if (--unread_ == 0) look_for_done_at_ = kNever;
    unread_bytes_ -= call.seldom_->exposed.bytes();
  }
  bool piles_up(size_t parts) const;
  void let_go_on();
  // server_streams.cc
  Status open_stream(ServerCall& call);
  void reply_after_items(const ServerCallRef& call, Reply reply, TimeNs now);
  void end_answered(const ServerCallRef& call, TimeNs now);
  void cancel_streams(const ServerCallRef& call, TimeNs now);
  void end_cancelled(const ServerCallRef& call, TimeNs now);
  void on_stream_idle(uint64_t call_id, TimeNs now) override;
  void on_stream_failed(uint64_t call_id, Status why, TimeNs now) override;
  void answer_for_handler(const ServerCallRef& call, Status why, TimeNs now);
  Result<bool> take_done(const ServerCallRef& call, TimeNs now);
  bool leased(const ServerCall& call) const;
  void release(ServerCall& call) {
    ServerCall::SeldomUsed* const used = call.seldom_.written();
    if (used == nullptr) return;
    note_read(call);
    used->exposures.revoke_all(endpoint_);
    used->exposed.end();
  }
  void erase(const ServerCallRef& call);
  ServerCallRef find(uint64_t call_id) const { return calls_.find(call_id); }
  ServerCallRef make(uint64_t call_id, TimeNs now) const;

  endpoint::Endpoint& endpoint_;
  Streams& streams_;
  const SessionOptions& options_;
  const Shares shares_;
  ServerSideEvents& events_;
  uint64_t last_call_id_ = 0;
  Status refusal_;
  CallTable<ServerCallRef> calls_;
  const Recycler::Owner memory_of_calls_ = Recycler::make();
  std::deque<QueuedReply> queue_;
  size_t unread_ = 0;  // calls whose results are exposed
  size_t unread_bytes_ = 0;
  std::atomic<bool> backed_up_{false};
  TimeNs look_for_done_at_ = kNever;
  TimeNs look_for_done_after_ = 0;
  CallIdOutbox cancel_acks_{kCancelAck};
  TimeNs earliest_expiry_ = kNever;  // a lower bound
};

inline void ServerSide::erase(const ServerCallRef& call) {
  release(*call);
  stop_waiting(*call);
  shares_.queued.remove(std::exchange(call->queued_bytes_, 0));
  if (call->stream_ != nullptr) {
    streams_.stop(call->stream_);
    streams_.release(call->stream_);
  }
  calls_.erase(call->id_);
  if (backed_up_) let_go_on();
}

}  // namespace rrpc::rpc
