// The streams of a session: items out under windows and credits, items in and their memory fetched, WINDOWs both ways.
// What a call's end means for its streams is the two sides' to say. Not thread-safe: the driver holds the connection's
// mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/landing.h"
#include "rpc/options.h"
#include "rpc/stream.h"

namespace rrpc::rpc {

// So many small items that follow each other at once share a message, where none of them has to wait for a credit: more
// would save little, and keep the peer waiting.
constexpr uint32_t kGatheredMax = 64;

// Transfer cookies with this bit are of items.
constexpr uint64_t kItemCookie = 1ULL << 62;

class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // There may be room, or an item, or the call has ended.
  virtual void on_stream_changed(const StreamRef& stream) { (void)stream; }
};

class Streams {
 public:
  Streams(endpoint::Endpoint& endpoint, const SessionOptions& options, const Shares& shares, StreamEvents& events)
      : endpoint_(endpoint), options_(options), shares_(shares), events_(events) {}

  void set_now(TimeNs now) { now_ = now; }
  // Counts that this end could keep, whatever the peer says.
  void set_peer_window(const StreamWindow& window) {
    peer_window_ = {std::min(window.items, kStreamWindowItemsMax), std::min(window.bytes, kMessageBytesMax)};
  }
  bool peer_streams() const { return peer_window_.items > 0; }

  // --- A call's side.
  StreamRef make(uint64_t call_id, bool calling, uint8_t kind, StreamOwner& owner);
  void let_send(const StreamRef& stream, bool sends) { stream->sends_ = sends; }
  // Items go from now on: the request has.
  void open(const StreamRef& stream);
  // Drops what hasn't gone; what has may be read until release().
  void stop_sending(const StreamRef& stream);
  // Drops what came and wasn't taken; fetches under way end later (on_stream_idle).
  void stop_receiving(const StreamRef& stream);
  void stop(const StreamRef& stream) {
    stop_sending(stream);
    stop_receiving(stream);
  }
  // The peer has read what it wanted.
  void release(const StreamRef& stream);
  // Nothing comes any more, and nobody wants to hear what was taken: the reply is here.
  void peer_ended(const StreamRef& stream);
  void end(const StreamRef& stream, const Status& status);
  static bool idle(const StreamRef& stream) { return stream == nullptr || stream->idle(); }
  static bool flushed(const StreamRef& stream) { return stream->flushed(); }
  static bool exposes(const StreamRef& stream) { return stream != nullptr && !stream->exposed_.empty(); }
  static bool saw_exposed(const StreamRef& stream) { return stream != nullptr && stream->saw_exposed_; }

  // --- The user's.
  // A small item, there is room, and nothing has to be waited for. `more`: as for send().
  bool can_send_at_once(const StreamRef& stream, const OutgoingItem& item, bool more = false) const {
    return is_small(item) && stream->opened_ && !stream->ended() && stream->has_room(item.payload.size()) &&
           (endpoint_.can_send(kItem) || (more && has_place(*stream, item.payload.size())));
  }
  // False: there is no room now, and the item is as it was. An error: nothing was sent. `more`: the next item is likely
  // to follow at once. Then a small one may wait for it, up to kGatheredMax in one message: until an item goes without
  // `more`, or anything else that flush() goes before.
  Result<bool> send(const StreamRef& stream, OutgoingItem& item, bool more = false);
  Status send_initial_metadata(const StreamRef& stream, Bytes metadata);
  void finish(const StreamRef& stream);
  // Asks the peer to say when it has all items sent so far. Returns their count: see Stream::delivered().
  uint32_t ask_delivered(const StreamRef& stream);
  // Takes up to `count` items that are here.
  void take(const StreamRef& stream, size_t count, std::vector<Item>& out);
  // Buffers of items whose fetch hasn't begun land in memory that the user gives, from now on.
  void land_by_hand(const StreamRef& stream);
  // The lengths of the buffers of the first item that waits for such memory; empty: none does.
  static std::vector<size_t> wanted(const StreamRef& stream);
  // Its memory, of just these lengths; not used if none waits any more. An error: they aren't, or it can't be
  // registered; nothing has changed.
  Status land(const StreamRef& stream, std::vector<endpoint::Buffer> memory);

  // --- The peer's. Errors are protocol errors.
  Status on_item(const StreamRef& stream, Bytes body);
  Status on_item_bulk(const StreamRef& stream, Bytes body);
  Status on_window(const StreamRef& stream, const WindowEntry& entry);
  Status on_transfer_finished(uint64_t number, provider::WcStatus status);

  void flush() {
    if (!owing_.empty() || !turn_.empty()) flush_some();
  }
  void fail_all();
  size_t fetches_under_way() const { return fetches_.size(); }
  uint64_t exposed_bytes() const { return exposed_bytes_; }

 private:
  struct Fetch {
    StreamRef stream;
    uint32_t sequence = 0;
    uint64_t bytes = 0;
    bool is_body = false;
    std::vector<endpoint::ReceivedBlock> blocks;
    Charge landed;
    std::vector<endpoint::Buffer> memory = {};  // the user's, in place of blocks
  };

  // streams_out.cc
  Status check_sendable(const Stream& stream) const;
  Status check_bounds(const OutgoingItem& item, uint64_t bytes) const;
  Result<bool> send_with_memory(Stream& stream, OutgoingItem& item, uint8_t flags);
  Status put_aside(Stream& stream, const std::string& body, Stream::ExposedItem& exposed, uint64_t item_bytes);
  bool is_small(const OutgoingItem& item) const {
    return item.buffers.empty() && sizeof(ItemFixed) + item.payload.size() <= endpoint_.body_bytes_max();
  }
  // In the last message that waits, for a small item.
  bool has_place(const Stream& stream, size_t bytes) const {
    return !stream.queue_.empty() && stream.queue_.back().small > 0 &&
           sizeof(ItemFixed) + stream.queue_.back().bytes.size() + sizeof(uint32_t) + bytes <=
               endpoint_.body_bytes_max();
  }
  void send_small(Stream& stream, Bytes payload, bool more);
  void gather(Stream& stream, Bytes payload);
  void count_sent(const StreamRef& stream, uint64_t bytes, bool more = false);
  void await_turn(const StreamRef& stream);
  void send_next(Stream& stream);
  void send_gathered(Stream& stream);
  Result<bool> charge_exposed(Stream& stream, const OutgoingItem& item, uint64_t bytes, Charge& charge);
  void drop_exposed(Stream& stream, Stream::ExposedItem& item);
  // streams_in.cc
  Status admit(Stream& stream, uint64_t bytes);
  Status admit_several(Stream& stream, Bytes payload);
  void go_on(const StreamRef& stream);
  void start_fetches(const StreamRef& stream);
  bool admit_fetch(const StreamRef& stream, size_t bytes, Charge& charge);
  Status start_fetch(const StreamRef& stream, uint32_t sequence, Charge charge);
  void start_transfer(Fetch fetch, std::vector<endpoint::TransferSegment> segments);
  static void want_memory(Stream& stream, Item& item);
  void fetch_failed(const StreamRef& stream, Status why);
  Status take_fetched(Fetch& fetch);
  Status unfold_body(Fetch& fetch, Item& item);
  void count_fetched(const StreamRef& stream);
  void tell(const StreamRef& stream);
  void flush_some();
  void flush_windows();
  void changed(const StreamRef& stream, std::atomic<uint32_t>& counter);

  endpoint::Endpoint& endpoint_;
  const SessionOptions& options_;
  const Shares shares_;
  StreamEvents& events_;
  StreamWindow peer_window_;
  TimeNs now_ = 0;
  uint64_t exposed_bytes_ = 0;
  uint64_t next_fetch_ = 0;
  std::unordered_map<uint64_t, Fetch> fetches_;
  std::deque<StreamRef> turn_;    // with items that wait
  std::vector<StreamRef> owing_;  // of which the peer is to be told
  std::string spare_;             // for the next message of small items
};

}  // namespace rrpc::rpc
