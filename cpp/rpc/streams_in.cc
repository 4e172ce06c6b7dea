// Items that come in: held to the window, their memory fetched in the order of delivery, the peer told of it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "rpc/streams.h"

namespace rrpc::rpc {

using provider::WcStatus;

namespace {

// Of one stream at a time: more would only let items that are wanted later take the path of those wanted first.
constexpr uint32_t kFetchesMax = 16;
constexpr uint64_t kFetchBytesMax = 2 << 20;

// Beside a quarter of their bytes: what some buffers take more of the pool than they are long.
constexpr size_t kBlocksSlack = 64 << 10;

// What the next item to fetch takes of the pool: of one whose body is elsewhere, its buffers too, as announced.
size_t landing_bytes_of(std::span<const endpoint::Descriptor> to_fetch, bool is_body, uint64_t announced_bytes) {
  return landing_bytes(to_fetch) + (is_body ? announced_bytes + announced_bytes / 4 + kBlocksSlack : 0);
}

}  // namespace

Status Streams::on_item(const StreamRef& stream, Bytes body) {
  ParsedItem item;
  RRPC_RETURN_IF_ERROR(parse_item(body, item, endpoint_.seals()));
  RRPC_RETURN_IF_ERROR(check_descriptors(item.descriptors.size(), options_));
  const std::string of_call = " of call " + std::to_string(stream->call_id_);
  if (!stream->receives_) return Status::protocol_error("an item" + of_call + ", which has none from that end");
  stream->saw_exposed_ = stream->saw_exposed_ || !item.descriptors.empty();
  if (stream->stopped_) return {};
  if (stream->peer_finished_ && !item.has(kAskWindow))
    return Status::protocol_error("an item" + of_call + " after the stream's end");
  if (item.fixed.sequence != stream->arrived_)
    return Status::protocol_error("item " + std::to_string(item.fixed.sequence) + of_call + " in the place of " +
                                  std::to_string(stream->arrived_));
  if (item.has(kInitialMetadata) && (stream->arrived_ != 0 || (stream->wire_id_ & kAnsweringBit) != 0))
    return Status::protocol_error("initial metadata" + of_call + " that isn't the answering end's item 0");
  if (item.has(kSeveralItems)) {
    RRPC_RETURN_IF_ERROR(admit_several(*stream, item.payload));
  } else if (!item.has(kNoItem)) {
    RRPC_RETURN_IF_ERROR(admit(*stream, item.item_bytes()));
    Item& placed = stream->items_.back();
    placed.text_ = as_text(item.payload);
    if (!item.descriptors.empty()) placed.seldom_.write().to_fetch = item.descriptors;
    placed.exposed_ = !item.descriptors.empty();
    placed.is_metadata_ = item.has(kInitialMetadata);
    placed.ready_ = item.descriptors.empty();
  }
  stream->peer_finished_ = stream->peer_finished_ || item.has(kStreamEnd);
  if (item.has(kAskWindow)) stream->asked_at_ = item.fixed.sequence;
  go_on(stream);
  return {};
}

Status Streams::on_item_bulk(const StreamRef& stream, Bytes body) {
  RRPC_ASSIGN_OR_RETURN(const ParsedItemBulk bulk, parse_item_bulk(body, endpoint_.seals()));
  stream->saw_exposed_ = true;
  if (stream->stopped_) return {};
  if (!stream->receives_ || stream->peer_finished_ || bulk.sequence != stream->arrived_)
    return Status::protocol_error("bulk item " + std::to_string(bulk.sequence) + " of call " +
                                  std::to_string(stream->call_id_) + " in the place of " +
                                  std::to_string(stream->arrived_));
  if (bulk.length_bytes > bulk.item_bytes &&
      bulk.length_bytes - bulk.item_bytes > body_overhead_max(options_, endpoint_.seals()))
    return Status::protocol_error("bulk item " + std::to_string(bulk.sequence) + " of call " +
                                  std::to_string(stream->call_id_) + ", announced as " +
                                  std::to_string(bulk.item_bytes) + " bytes, has a body of " +
                                  std::to_string(bulk.length_bytes));
  RRPC_RETURN_IF_ERROR(admit(*stream, bulk.item_bytes));
  if (Status status =
          check_message(bulk.length_bytes, options_, "the item", body_overhead_max(options_, endpoint_.seals()));
      !status.ok())
    return stream->owner_->on_stream_failed(stream->call_id_, std::move(status), now_), Status();
  Item& placed = stream->items_.back();
  placed.body_is_elsewhere_ = placed.exposed_ = true;
  placed.seldom_.write().to_fetch.push_back({bulk.address, bulk.length_bytes, bulk.rkey, false, false, bulk.seal});
  go_on(stream);
  return {};
}

// Makes a place for one more item, if the peer kept to the window as far as it was told.
Status Streams::admit(Stream& stream, uint64_t bytes) {
  if (!stream.window_.has_room(stream.arrived_ - stream.told_taken_, stream.arrived_bytes_ - stream.told_bytes_, bytes))
    return Status::protocol_error("item " + std::to_string(stream.arrived_) + " of call " +
                                  std::to_string(stream.call_id_) + ", of " + std::to_string(bytes) +
                                  " bytes, passes the window of " + encode_window(stream.window_));
  ++stream.arrived_;
  stream.arrived_bytes_ += bytes;
  stream.items_.emplace_back().bytes_ = bytes;
  return {};
}

Status Streams::admit_several(Stream& stream, Bytes payload) {
  ByteReader reader(payload);
  do {
    const Bytes bytes = reader.take(reader.read<uint32_t>());
    if (reader.failed()) return Status::protocol_error("several items in one message that is too short for them");
    RRPC_RETURN_IF_ERROR(admit(stream, bytes.size()));
    stream.items_.back().text_ = as_text(bytes);
    stream.items_.back().ready_ = true;
  } while (reader.remaining() > 0);
  return {};
}

// After anything has come: fetches what may be, and tells who waits.
void Streams::go_on(const StreamRef& stream) {
  start_fetches(stream);
  if (stream->stopped_) return;
  count_fetched(stream);
  tell(stream);
  if (stream->readable() || stream->exhausted() || stream->wants_memory()) changed(stream, stream->item_changes_);
}

void Streams::start_fetches(const StreamRef& stream) {
  Stream& s = *stream;
  while (!s.stopped_ && s.fetch_next_ != s.arrived_) {
    Item& next = s.arrived_item(s.fetch_next_);
    if (s.lands_by_hand_ && !next.ready_ && !next.body_is_elsewhere_ && s.landing_ticket_ == 0) {
      want_memory(s, next);
      ++s.fetch_next_;
      continue;
    }
    const bool ready = next.ready_;
    if (!ready && (s.fetching_ >= kFetchesMax || (s.fetching_ > 0 && s.fetching_bytes_ >= kFetchBytesMax))) return;
    Charge charge;
    if (!ready) {
      if (s.landing_ticket_ != 0) return;
      const bool brings_buffers = next.body_is_elsewhere_ && !s.lands_by_hand_;
      const size_t bytes = landing_bytes_of(next.seldom_->to_fetch, brings_buffers, next.bytes_);
      if (Status status = shares_.landing.check(bytes); !status.ok()) return fetch_failed(stream, std::move(status));
      if (!admit_fetch(stream, bytes, charge)) return;
    }
    const uint32_t sequence =
        s.fetch_next_++;  // first: a transfer of nothing ends at once, and then this is entered again
    if (ready) continue;
    if (Status status = start_fetch(stream, sequence, std::move(charge)); !status.ok())
      return fetch_failed(stream, std::move(status));
  }
}

void Streams::fetch_failed(const StreamRef& stream, Status why) {
  stream->owner_->on_stream_failed(stream->call_id_, std::move(why), now_);
}

// False: the stream's next item waits within its window until there is memory for it.
bool Streams::admit_fetch(const StreamRef& stream, size_t bytes, Charge& charge) {
  if (shares_.landing.enter(bytes, charge)) return true;
  endpoint_.tally(&endpoint::Counters::landing_waits);
  stream->landing_ticket_ = shares_.landing.wait(bytes, [this, stream](Charge granted, TimeNs) {
    stream->landing_ticket_ = 0;
    if (Status status = start_fetch(stream, stream->fetch_next_++, std::move(granted)); !status.ok())
      fetch_failed(stream, std::move(status));
    else
      start_fetches(stream);
  });
  return false;
}

// Begins a fetch that was admitted with `charge`.
Status Streams::start_fetch(const StreamRef& stream, uint32_t sequence, Charge charge) {
  Item& item = stream->arrived_item(sequence);
  const std::vector<endpoint::Descriptor>& to_fetch = item.seldom_->to_fetch;
  Fetch fetch{stream, sequence, total_bytes(to_fetch), item.body_is_elsewhere_, {}, std::move(charge)};
  auto landing = prepare_landing(endpoint_, to_fetch, {}, fetch.blocks);
  if (!landing.ok()) {
    shares_.landing.fetch_ended(fetch.landed.bytes());
    return landing.status();
  }
  start_transfer(std::move(fetch), std::move(*landing));
  return {};
}

void Streams::start_transfer(Fetch fetch, std::vector<endpoint::TransferSegment> segments) {
  ++fetch.stream->fetching_;
  fetch.stream->fetching_bytes_ += fetch.bytes;
  const uint64_t number = next_fetch_++;
  fetches_.emplace(number, std::move(fetch));
  endpoint_.start_transfer(number | kItemCookie, provider::Opcode::kRead, std::move(segments));
}

void Streams::want_memory(Stream& stream, Item& item) {
  item.lands_by_hand_ = item.wants_memory_ = true;
  ++stream.wanting_;
}

void Streams::land_by_hand(const StreamRef& stream) {
  Stream& s = *stream;
  s.lands_by_hand_ = true;
  if (s.landing_ticket_ == 0 || s.arrived_item(s.fetch_next_).body_is_elsewhere_) return;
  shares_.landing.withdraw(std::exchange(s.landing_ticket_, 0));
  go_on(stream);
}

std::vector<size_t> Streams::wanted(const StreamRef& stream) {
  std::vector<size_t> lengths;
  if (!stream->wants_memory()) return lengths;
  const auto item = std::ranges::find(stream->items_, true, &Item::wants_memory_);
  for (std::span<const endpoint::Descriptor> rest = item->seldom_->to_fetch; !rest.empty();) {
    const std::span<const endpoint::Descriptor> pieces = first_buffer(rest);
    lengths.push_back(total_bytes(pieces));
    rest = rest.subspan(pieces.size());
  }
  return lengths;
}

Status Streams::land(const StreamRef& stream, std::vector<endpoint::Buffer> memory) {
  const std::vector<size_t> lengths = wanted(stream);
  if (lengths.empty()) return {};  // the stream has ended meanwhile
  if (stream->ended()) return stream->ended_with();
  std::vector<OutTarget> targets;
  if (!std::ranges::equal(lengths, memory, {}, {}, &endpoint::Buffer::length_bytes))
    return invalid_argument("the memory given isn't as long as the item's buffers");
  for (size_t i = 0; i < memory.size(); ++i) {
    OutTarget& target = targets.emplace_back(OutTarget{i, memory[i].data, memory[i].length_bytes, nullptr});
    if (target.length_bytes == 0) continue;
    RRPC_ASSIGN_OR_RETURN(target.region,
                          endpoint_.sink_region_for(target.data, target.length_bytes, memory[i].owner_id));
  }
  Stream& s = *stream;
  const auto found = std::ranges::find(s.items_, true, &Item::wants_memory_);
  const auto sequence = s.first_arrived() + static_cast<uint32_t>(found - s.items_.begin());
  Fetch fetch{stream, sequence, total_bytes(found->seldom_->to_fetch), false, {}, {}, std::move(memory)};
  RRPC_ASSIGN_OR_RETURN(auto segments, prepare_landing(endpoint_, found->seldom_->to_fetch, targets, fetch.blocks));
  found->wants_memory_ = false;
  --s.wanting_;
  shares_.landing.fetch_begins(0);  // it takes nothing of the pool
  start_transfer(std::move(fetch), std::move(segments));
  return {};
}

Status Streams::on_transfer_finished(uint64_t number, WcStatus status) {
  auto ended = fetches_.extract(number);
  RRPC_CHECK(!ended.empty(), "a transfer ends before its fetch is forgotten");
  Fetch fetch = std::move(ended.mapped());
  const StreamRef stream = fetch.stream;
  --stream->fetching_;
  stream->fetching_bytes_ -= fetch.bytes;
  shares_.landing.fetch_ended(fetch.landed.bytes());
  if (stream->stopped_) {
    if (stream->idle()) stream->owner_->on_stream_idle(stream->call_id_, now_);
    return {};
  }
  Status taken = unavailable("fetching an item failed: " + std::string(wc_status_name(status)));
  if (status == WcStatus::kSuccess) taken = take_fetched(fetch);
  if (taken.is_protocol_error()) return taken;
  if (!taken.ok()) return stream->owner_->on_stream_failed(stream->call_id_, std::move(taken), now_), Status();
  go_on(stream);
  if (stream->idle()) stream->owner_->on_stream_idle(stream->call_id_, now_);
  return {};
}

Status Streams::take_fetched(Fetch& fetch) {
  Item& item = fetch.stream->arrived_item(fetch.sequence);
  if (fetch.is_body) return unfold_body(fetch, item);
  auto& seldom = item.seldom_.write();
  seldom.blocks = std::move(fetch.blocks);
  seldom.memory = std::move(fetch.memory);
  if (seldom.memory.empty()) seldom.landed = std::move(fetch.landed);  // else the body's, if there is one
  item.ready_ = true;
  return {};
}

Status Streams::unfold_body(Fetch& fetch, Item& item) {
  auto& seldom = item.seldom_.write();
  seldom.body = std::move(fetch.blocks.front());
  item.body_is_elsewhere_ = false;
  ParsedItem parsed;
  RRPC_RETURN_IF_ERROR(parse_item({seldom.body.data(), seldom.body.size()}, parsed, endpoint_.seals()));
  RRPC_RETURN_IF_ERROR(check_descriptors(parsed.descriptors.size(), options_));
  RRPC_RETURN_IF_ERROR(check_message(parsed.payload.size(), options_, "the item"));
  const uint64_t sender = fetch.stream->wire_id_ ^ kAnsweringBit;
  const bool may_be_metadata = fetch.sequence == 0 && (sender & kAnsweringBit) != 0;
  if (parsed.fixed.call_id != sender || parsed.fixed.sequence != fetch.sequence || parsed.item_bytes() != item.bytes_ ||
      (parsed.fixed.flags & ~(may_be_metadata ? kInitialMetadata : 0)) != 0)
    return Status::protocol_error("a fetched item that isn't the one announced");
  seldom.payload_in_body = parsed.payload;
  seldom.to_fetch = parsed.descriptors;
  item.is_metadata_ = parsed.has(kInitialMetadata);
  item.ready_ = seldom.to_fetch.empty();
  if (item.ready_) return seldom.landed = std::move(fetch.landed), Status();
  if (fetch.stream->lands_by_hand_) {
    seldom.landed = std::move(fetch.landed);
    return want_memory(*fetch.stream, item), Status();
  }
  const size_t bytes = endpoint::Pool::block_bytes(seldom.body.size()) + landing_bytes(seldom.to_fetch);
  RRPC_RETURN_IF_ERROR(shares_.landing.check(bytes));
  // The announced bytes had room; what small buffers take beyond them may not.
  if (!shares_.landing.grow(fetch.landed, bytes))
    return resource_exhausted("landing_bytes_max: an item with many small buffers takes " + std::to_string(bytes) +
                              " bytes, for which there is no landing memory now");
  shares_.landing.fetch_begins(fetch.landed.bytes());
  return start_fetch(fetch.stream, fetch.sequence, std::move(fetch.landed));
}

void Streams::count_fetched(const StreamRef& stream) {
  Stream& s = *stream;
  for (; s.fetched_ != s.arrived_ && s.arrived_item(s.fetched_).ready_; ++s.fetched_)
    s.fetched_exposed_ = s.fetched_exposed_ || s.arrived_item(s.fetched_).exposed_;
  if (!s.readable() || !s.items_.front().is_metadata_) return;
  Item metadata = std::move(s.items_.front());
  s.items_.pop_front();
  ++s.taken_;
  s.taken_bytes_ += metadata.bytes_;
  s.initial_metadata_ = as_text(metadata.payload());
  if (Status status = check_metadata(metadata.bytes_, options_, "the stream"); !status.ok())
    s.owner_->on_stream_failed(s.call_id_, std::move(status), now_);
  else
    changed(stream, s.item_changes_);
}

void Streams::take(const StreamRef& stream, size_t count, std::vector<Item>& out) {
  Stream& s = *stream;
  out.reserve(std::min(count, out.size() + s.items_.size()));
  while (out.size() < count && s.readable()) {
    Item& taken = out.emplace_back(std::move(s.items_.front()));
    s.items_.pop_front();
    if (Item::SeldomUsed* const seldom = taken.seldom_.written()) seldom->landed = {};  // the user's from now on
    ++s.taken_;
    s.taken_bytes_ += taken.bytes_;
  }
  tell(stream);
}

// Often enough that no sender waits for room that there is, and as soon as memory was fetched.
void Streams::tell(const StreamRef& stream) {
  Stream& s = *stream;
  if (!s.tells_ || s.owes_window_) return;
  const bool asked = s.asked_at_ && !before(s.fetched_, *s.asked_at_);
  if (!asked && !s.fetched_exposed_ &&
      !s.window_.worth_telling(s.taken_ - s.told_taken_, s.taken_bytes_ - s.told_bytes_))
    return;
  s.owes_window_ = true;
  owing_.push_back(stream);
  flush_windows();
}

void Streams::flush_windows() {
  while (!owing_.empty() && endpoint_.can_send(kWindow)) {
    const size_t count = std::min(owing_.size(), endpoint_.body_bytes_max() / sizeof(WindowEntry));
    std::vector<WindowEntry> entries;
    for (size_t i = 0; i < count; ++i) {
      Stream& s = *owing_[i];
      s.owes_window_ = false;
      if (!s.tells_) continue;
      entries.push_back({s.wire_id_, s.fetched_, s.taken_, s.taken_bytes_});
      s.fetched_exposed_ = false;
      if (s.asked_at_ && !before(s.fetched_, *s.asked_at_)) s.asked_at_.reset();
      s.told_taken_ = s.taken_;
      s.told_bytes_ = s.taken_bytes_;
    }
    owing_.erase(owing_.begin(), owing_.begin() + static_cast<ptrdiff_t>(count));
    if (entries.empty()) continue;
    const Bytes part = std::as_bytes(std::span(entries));
    endpoint_.send(kWindow, {&part, 1});
  }
}

void Streams::stop_receiving(const StreamRef& stream) {
  stream->stopped_ = true;
  stream->tells_ = false;
  stream->items_.clear();
  stream->wanting_ = 0;
  if (stream->landing_ticket_ != 0) shares_.landing.withdraw(std::exchange(stream->landing_ticket_, 0));
  if (stream->idle()) return;
  std::vector<uint64_t> numbers;
  for (const auto& [number, fetch] : fetches_)
    if (fetch.stream == stream) numbers.push_back(number);
  for (const uint64_t number : numbers) endpoint_.cancel_transfer(number | kItemCookie);
}

void Streams::peer_ended(const StreamRef& stream) {
  stop_sending(stream);
  release(stream);
  stream->peer_finished_ = stream->answered_ = true;
  stream->tells_ = false;
  stream->room_changes_.fetch_add(1, std::memory_order_release);
  changed(stream, stream->item_changes_);
}

void Streams::end(const StreamRef& stream, const Status& status) {
  if (stream->ended()) return;
  stream->ended_with_ = status;
  stream->ended_.store(true, std::memory_order_release);
  stream->room_changes_.fetch_add(1, std::memory_order_release);
  changed(stream, stream->item_changes_);
}

void Streams::changed(const StreamRef& stream, std::atomic<uint32_t>& counter) {
  counter.fetch_add(1, std::memory_order_release);
  events_.on_stream_changed(stream);
}

void Streams::fail_all() {
  turn_.clear();
  owing_.clear();
}

}  // namespace rrpc::rpc
