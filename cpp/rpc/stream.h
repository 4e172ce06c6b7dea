// The items of one call at one end: those that it sends, those that it receives, and how far each is ahead of who
// takes them. Streams (streams.h) moves them.
//
// One stream at one end has two directions, each with flags of Stream for its state. Sending: unopened (neither opened_
// nor finished_), open (opened_), finishing (finished_ and end_owed_), finished (finished_ alone). Beside any of them
// it may be ended (ended_), by its call: no item is accepted then, but what is in queue_ goes, unless it is stopped
// too. "same" is the state that it was in.
//
// state               | event                          | next state | does
// --------------------|--------------------------------|------------|-----------------------------------------
// none                | make()                         | unopened   | at the answering end open at once
// unopened            | open(): the REQUEST has gone   | open       | takes a turn for queue_; finishing stays so
// open                | send(): small, room, credit    | open       | queue_ empty: straight into the peer's slot
// unopened, open      | send(): small, room, `more`    | same       | into queue_; sent by the next flush()
// unopened, open      | send(): room, else             | same       | into queue_; memory that it shows: exposed_
// unopened, open      | send(): no room                | same       | refused_bytes_; the item stays the caller's
// finishing, finished | send()                         | same       | fails in check_sendable(), as when ended
// unopened, open      | finish()                       | finishing  | end_owed_; takes a turn once opened_
// not ended           | ask_delivered(): some are not  | same       | ask_owed_; kAskWindow goes behind queue_
// any, opened_        | flush_some(): turn and credit  | same       | send_next(): a message; then the next turn
// finishing           | the same: nothing else is owed | finished   | sends kNoItem with kStreamEnd
// any                 | on_window(): possible counts   | same       | revokes what was fetched; room_changes_
// any                 | on_window(): of what didn't go | same       | a protocol error, which ends the connection
// any                 | stop_sending()                 | finished   | drops queue_, and revokes what that exposed
// any                 | release()                      | same       | revokes all of exposed_: the peer has read
// not ended           | end()                          | ended      | ended_with_; room_changes_ and item_changes_
// ended               | end()                          | ended      | nothing: the first reason stays
//
// Receiving: open (receives_), finished (peer_finished_), exhausted (exhausted(): finished, and all items taken; from
// the start where the call has no items from that end), stopped (stopped_), and beside them ended.
//
// state          | event                                 | next state | does
// ---------------|---------------------------------------|------------|-----------------------------------------
// open           | on_item(): the next, within window_   | open       | admit(); without descriptors it is ready_
// open           | on_item() with kStreamEnd             | finished   | peer_finished_; without items_ exhausted
// open           | on_item_bulk()                        | open       | admit(); body_is_elsewhere_, so to be fetched
// not stopped    | on_item() with kAskWindow             | same       | asked_at_: a WINDOW when all before are here
// open, finished | start_fetches(): landing has room     | same       | start_fetch(): a READ begins; fetching_
// open, finished | start_fetches(): landing has none now | same       | landing_ticket_; the item waits in items_
// open, finished | start_fetches(): lands_by_hand_       | same       | wants_memory_, until land() begins the READ
// open, finished | land_by_hand(): has landing_ticket_  | same       | gives it back: wants_memory_, unless a body
// open, finished | on_transfer_finished(): success       | same       | ready_ (after a body: its buffers); go_on()
// open, finished | a fetch fails, no memory can be had   | stopped    | on_stream_failed(): its call has end(), stop()
// open, finished | take()                                | same       | taken_, tell(); exhausted after the last one
// not stopped    | on_item(): not the next, or too much  | same       | a protocol error, which ends the connection
// not stopped    | peer_ended(): REPLY, CANCEL_ACK       | finished   | answered_: wakes senders too; READs go on
// not ended      | end()                                 | ended      | as above; take() gives what is in items_
// any            | stop_receiving()                      | stopped    | drops items_ and the ticket, cancels READs
// stopped        | on_item(), on_item_bulk()             | stopped    | drops it: nobody wants it any more
// stopped        | on_transfer_finished(): the last      | stopped    | on_stream_idle(): its call may end now
//
// This is credit-based flow control (Kung and Morris, "Credit-Based Flow Control for ATM Networks", IEEE Network 1995),
// from end to end for each stream. The credit is a WINDOW, whose counts of what was taken are absolute, so that one
// stands for several. Who keeps to it finds a place for each item, and memory that items name is fetched only when
// there is landing memory: so a receiver never drops an item for want of room. What send() copies is the caller's again
// at once; what it exposes stays so until a WINDOW counts it as fetched, stop_sending() drops it unsent, or release().
// What was fetched is the stream's, charged as landed_, until take().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/seldom.h"
#include "rpc/budget.h"
#include "rpc/exposures.h"
#include "rpc/messages.h"

namespace rrpc::rpc {

struct OutgoingItem {
  Bytes payload = {};
  std::vector<endpoint::Buffer> buffers = {};

  uint64_t bytes() const {
    uint64_t total = payload.size();
    for (const endpoint::Buffer& buffer : buffers) total += buffer.length_bytes;
    return total;
  }
};

// As it came.
class Item {
 public:
  Bytes payload() const { return seldom_->body ? seldom_->payload_in_body : as_bytes(text_); }
  const std::vector<endpoint::ReceivedBlock>& blocks() const { return seldom_->blocks; }
  std::vector<endpoint::ReceivedBlock> take_blocks() {
    return seldom_.written() == nullptr ? std::vector<endpoint::ReceivedBlock>() : std::move(seldom_.write().blocks);
  }
  // The user's memory that its buffers landed in, for an empty block each; none where they landed in the pool.
  const std::vector<endpoint::Buffer>& memory() const { return seldom_->memory; }

 private:
  friend class Stream;
  friend class Streams;
  struct SeldomUsed {
    endpoint::ReceivedBlock body;  // of an item too long for a slot
    Bytes payload_in_body;
    std::vector<endpoint::ReceivedBlock> blocks;
    std::vector<endpoint::Buffer> memory;
    std::vector<endpoint::Descriptor> to_fetch;
    Charge landed;  // until it is taken
  };
  std::string text_;    // the payload, unless there is a body
  uint64_t bytes_ = 0;  // as the window counts it
  bool ready_ = false;
  bool exposed_ = false;  // the sender keeps memory for it until it is told
  bool is_metadata_ = false;
  bool body_is_elsewhere_ = false;  // and to be fetched first
  bool lands_by_hand_ = false;      // its buffers, in memory of the user's,
  bool wants_memory_ = false;       // which isn't there yet
  Seldom<SeldomUsed> seldom_;
};

// The half of a session that a call belongs to.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // No item is being read any more, or all of this end's own have gone.
  virtual void on_stream_idle(uint64_t call_id, TimeNs now) = 0;
  virtual void on_stream_failed(uint64_t call_id, Status why, TimeNs now) = 0;
};

// What somebody asks to be told of who can't wait.
enum class Awaited : uint8_t { kRoom, kItems, kDelivery, kEnd };

// Whether a count of items, modulo 2^32, comes before another.
inline bool before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

class Stream {
 public:
  bool sends() const { return sends_; }
  bool receives() const { return receives_; }
  // For any thread: how often something came about that a sender or a receiver may wait for.
  uint32_t room_changes() const { return room_changes_.load(std::memory_order_acquire); }
  uint32_t item_changes() const { return item_changes_.load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }  // its call, for this end
  const Status& ended_with() const { return ended_with_; }               // once ended()

  // Of whoever has the connection's mutex.
  // A peer that gives a window but no credits has no more piled up here than this end's own window.
  // And none that fetches no items has more of them open to it.
  bool has_room(uint64_t item_bytes) const {
    if (!exposed_.empty() && (exposed_is_full_ || exposed_.size() >= window_.items || exposed_bytes_ > window_.bytes))
      return false;
    return queued() < window_.items &&
           peer_window_.has_room(sent_ - sent_taken_, sent_bytes_ - sent_taken_bytes_, item_bytes);
  }
  bool readable() const { return !items_.empty() && items_.front().ready_; }
  // An item waits for memory of the user's: Streams::wanted(). Not one behind others that land in the pool: the user is
  // asked for memory in the order of the items.
  bool wants_memory() const {
    if (wanting_ == 0) return false;
    for (const Item& item : items_) {
      if (item.wants_memory_) return true;
      if (!item.lands_by_hand_ && !item.seldom_->to_fetch.empty()) return false;
    }
    return false;
  }
  // The peer sends no more, and all it sent was taken.
  bool exhausted() const { return items_.empty() && (peer_finished_ || !receives_); }
  bool peer_finished() const { return peer_finished_; }
  // At the calling end: the reply is here, so no item can be sent any more. Items that came before the reply may still
  // be on their way into memory.
  bool answered() const { return answered_; }
  // Whether the peer has all items before this number, and reads none of their memory any more.
  bool delivered(uint32_t sequence) const { return !before(sent_fetched_, sequence); }
  const std::optional<std::string>& initial_metadata() const { return initial_metadata_; }
  // Whether it has come; room for the item that was last refused, if there was none for it, or no need for any.
  bool has_come(Awaited what) const {
    if (ended()) return true;
    if (what == Awaited::kRoom) return answered_ || !refused_bytes_ || has_room(*refused_bytes_);
    if (what == Awaited::kDelivery) return delivered(sent_);
    return what == Awaited::kItems && (readable() || exhausted() || wants_memory());
  }

  // The driver's.
  std::atomic<int> sleepers{0};                  // threads; counted before their last look
  std::vector<std::function<void()>> on_change;  // once each, at the next change
  uint64_t parked_as = 0;                        // its call's handle; 0: it isn't parked

 private:
  friend class Streams;
  // A message that waits: the body of one item, or small items that share it, each behind its length.
  struct QueuedMessage {
    uint8_t type = kItem;
    uint32_t sequence = 0;  // of the first item
    uint32_t small = 0;     // 0: a body
    std::string bytes;

    void append(Bytes payload) {
      const auto length = static_cast<uint32_t>(payload.size());
      bytes.reserve(bytes.size() + sizeof(length) + payload.size());  // all of it or nothing, if memory runs out
      bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
      bytes += as_text(payload);
      ++small;
    }
  };
  struct ExposedItem {
    uint32_t sequence = 0;
    Exposures exposures;
    Charge charge;
  };

  bool idle() const { return fetching_ == 0 && landing_ticket_ == 0 && wanting_ == 0; }
  bool flushed() const { return queue_.empty() && !end_owed_ && !ask_owed_; }
  uint32_t queued() const { return queue_.empty() ? 0 : sent_ - queue_.front().sequence; }  // items
  uint32_t first_arrived() const { return arrived_ - static_cast<uint32_t>(items_.size()); }
  Item& arrived_item(uint32_t sequence) { return items_[sequence - first_arrived()]; }

  uint64_t call_id_ = 0;
  uint64_t wire_id_ = 0;  // in what this end sends
  StreamOwner* owner_ = nullptr;
  bool sends_ = false;
  bool receives_ = false;

  // Sending. Counts of items are modulo 2^32.
  StreamWindow peer_window_;
  bool opened_ = false;                // what begins the call has gone
  bool finished_ = false;              // the user sends no more
  bool end_owed_ = false;              // and the peer hasn't been told
  bool ask_owed_ = false;              // nor asked for a WINDOW
  std::optional<uint32_t> asked_for_;  // the number up to which it was
  bool in_turn_ = false;
  uint32_t sent_ = 0, sent_fetched_ = 0, sent_taken_ = 0;
  uint64_t sent_bytes_ = 0, sent_taken_bytes_ = 0;
  std::deque<QueuedMessage> queue_;  // wait for credits, or the last one for more items
  std::deque<ExposedItem> exposed_;  // with memory that the peer may read
  uint64_t exposed_bytes_ = 0;       // of those
  bool exposed_is_full_ = false;     // the connection's share was, when an item was last refused
  std::optional<uint64_t> refused_bytes_;

  // Receiving.
  StreamWindow window_;
  bool peer_finished_ = false;
  bool stopped_ = false;  // what still comes is of no interest
  bool answered_ = false;
  bool tells_ = true;  // the peer wants to know what was taken
  bool owes_window_ = false;
  std::optional<uint32_t> asked_at_;  // the peer wants a WINDOW once the items before this are fetched
  bool saw_exposed_ = false;          // the peer may keep memory until it is told that the call is done with
  uint32_t arrived_ = 0, fetched_ = 0, taken_ = 0, fetch_next_ = 0;
  uint64_t arrived_bytes_ = 0, taken_bytes_ = 0;
  bool fetched_exposed_ = false;  // since the last WINDOW
  uint32_t told_taken_ = 0;
  uint64_t told_bytes_ = 0;
  uint64_t landing_ticket_ = 0;  // while the next to fetch waits for memory
  uint32_t fetching_ = 0;
  uint64_t fetching_bytes_ = 0;
  bool lands_by_hand_ = false;  // buffers of items go into memory of the user's
  uint32_t wanting_ = 0;        // items that wait for it
  std::deque<Item> items_;      // not taken yet
  std::optional<std::string> initial_metadata_;

  std::atomic<uint32_t> room_changes_{0};
  std::atomic<uint32_t> item_changes_{0};
  std::atomic<bool> ended_{false};
  Status ended_with_;
};
using StreamRef = std::shared_ptr<Stream>;

}  // namespace rrpc::rpc
