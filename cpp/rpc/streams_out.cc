// Items that go out: under the peer's window, then under credits; what memory they show until the peer has fetched it.
#include <algorithm>
#include <utility>

#include "rpc/streams.h"

namespace rrpc::rpc {

namespace {

Bytes bytes_of(const ItemFixed& fixed) { return std::as_bytes(std::span(&fixed, 1)); }

}  // namespace

StreamRef Streams::make(uint64_t call_id, bool calling, uint8_t kind, StreamOwner& owner) {
  auto stream = std::make_shared<Stream>();
  stream->call_id_ = call_id;
  stream->wire_id_ = calling ? call_id : call_id | kAnsweringBit;
  stream->owner_ = &owner;
  stream->sends_ = (kind & (calling ? kClientStreams : kServerStreams)) != 0;
  stream->receives_ = (kind & (calling ? kServerStreams : kClientStreams)) != 0;
  stream->opened_ = !calling;
  stream->peer_window_ = peer_window_;
  stream->window_ = {options_.stream_window_items, options_.stream_window_bytes};
  return stream;
}

void Streams::open(const StreamRef& stream) {
  stream->opened_ = true;
  await_turn(stream);
  flush();
}

Status Streams::check_sendable(const Stream& stream) const {
  if (!stream.sends_) return failed_precondition("this end of the call has no items to send");
  if (stream.ended() && !stream.ended_with_.ok()) return stream.ended_with_;
  if (stream.ended() || stream.answered_) return failed_precondition("the call has ended: no more items can be sent");
  if (stream.finished_) return failed_precondition("the items of this end were finished: no more can be sent");
  return {};
}

Status Streams::check_bounds(const OutgoingItem& item, uint64_t bytes) const {
  if (bytes > kMessageBytesMax) return resource_exhausted("an item of " + std::to_string(bytes) + " bytes");
  RRPC_RETURN_IF_ERROR(check_buffers(item.buffers.size(), endpoint_.descriptors_max(), "the item"));
  return check_message(item.payload.size(), options_, "the item");
}

// What a caller shows is its own choice; what a server shows is what its clients asked for. False: not before the peer
// has fetched some of what it was sent.
Result<bool> Streams::charge_exposed(Stream& stream, const OutgoingItem& item, uint64_t bytes, Charge& charge) {
  if (is_small(item)) return true;
  const bool answering = (stream.wire_id_ & kAnsweringBit) != 0;
  const uint64_t limit = options_.exposed_bytes_max == 0 ? kMessageBytesMax : options_.exposed_bytes_max;
  if (answering ? charge.grow(shares_.exposed, endpoint_.bytes_kept(bytes)) : exposed_bytes_ + bytes <= limit)
    return true;
  stream.exposed_is_full_ = !stream.exposed_.empty();
  if (stream.exposed_is_full_) return false;
  if (answering) return exposed_too_much(*shares_.exposed, "items", bytes);
  return resource_exhausted("exposed_bytes_max: items of " + std::to_string(exposed_bytes_) +
                            " bytes are exposed to this peer, " + std::to_string(bytes) +
                            " more would pass the limit of " + std::to_string(limit));
}

Result<bool> Streams::send(const StreamRef& stream, OutgoingItem& item, bool more) {
  RRPC_RETURN_IF_ERROR(check_sendable(*stream));
  const uint64_t bytes = item.bytes();
  if (!stream->has_room(bytes)) {
    stream->refused_bytes_ = bytes;
    return false;
  }
  RRPC_RETURN_IF_ERROR(check_bounds(item, bytes));
  const bool small = is_small(item);
  if (small) {
    send_small(*stream, item.payload, more);
  } else {
    RRPC_ASSIGN_OR_RETURN(const bool room, send_with_memory(*stream, item, 0));
    if (!room) {
      stream->refused_bytes_ = bytes;
      return false;
    }
  }
  count_sent(stream, bytes, more && small);
  return true;
}

Status Streams::send_initial_metadata(const StreamRef& stream, Bytes metadata) {
  RRPC_RETURN_IF_ERROR(check_sendable(*stream));
  if ((stream->wire_id_ & kAnsweringBit) == 0)
    return failed_precondition("the caller's metadata goes with its request");
  if (stream->sent_ != 0) return failed_precondition("initial metadata goes before the first item, and once");
  RRPC_RETURN_IF_ERROR(check_metadata(metadata.size(), options_, "the stream"));
  OutgoingItem item{metadata};
  RRPC_RETURN_IF_ERROR(send_with_memory(*stream, item, kInitialMetadata).status());
  count_sent(stream, metadata.size());
  return {};
}

void Streams::finish(const StreamRef& stream) {
  if (!stream->sends_ || stream->finished_ || stream->ended()) return;
  stream->finished_ = stream->end_owed_ = true;
  await_turn(stream);
  flush();
}

uint32_t Streams::ask_delivered(const StreamRef& stream) {
  const uint32_t sent = stream->sent_;
  const bool asked = stream->asked_for_ == sent;
  if (stream->delivered(sent) || asked || stream->ended()) return sent;
  stream->asked_for_ = sent;
  stream->ask_owed_ = true;
  await_turn(stream);
  flush();
  return sent;
}

// The fast path of an item that comes alone: from the caller's bytes into the peer's slot.
void Streams::send_small(Stream& stream, Bytes payload, bool more) {
  if (more || !stream.opened_ || !stream.queue_.empty() || !endpoint_.can_send(kItem)) return gather(stream, payload);
  const ItemFixed fixed{stream.wire_id_, stream.sent_, 0, 0, 0};
  const Bytes parts[] = {bytes_of(fixed), payload};
  endpoint_.send(kItem, parts);
}

// Small items that wait share messages.
void Streams::gather(Stream& stream, Bytes payload) {
  if (has_place(stream, payload.size())) return stream.queue_.back().append(payload);
  flush();
  Stream::QueuedMessage message{kItem, stream.sent_, 0, std::exchange(spare_, {})};
  message.bytes.clear();
  message.append(payload);
  stream.queue_.push_back(std::move(message));
}

Result<bool> Streams::send_with_memory(Stream& stream, OutgoingItem& item, uint8_t flags) {
  const uint64_t item_bytes = item.bytes();
  Stream::ExposedItem exposed{stream.sent_, {}, {}};
  RRPC_ASSIGN_OR_RETURN(const bool room, charge_exposed(stream, item, item_bytes, exposed.charge));
  if (!room) return false;
  Status status = fit_descriptors(endpoint_, item.buffers);
  for (endpoint::Buffer& buffer : item.buffers) buffer.lend = false;  // items are taken back as the window moves
  for (endpoint::Buffer& buffer : item.buffers)
    if (status.ok()) status = exposed.exposures.add(endpoint_, std::move(buffer), provider::kRemoteRead);
  if (status.ok()) {
    std::vector<endpoint::Descriptor> descriptors;
    for (size_t i = 0; i < exposed.exposures.size(); ++i) descriptors.push_back(exposed.exposures.descriptor(i));
    const ItemFixed fixed{stream.wire_id_, stream.sent_, static_cast<uint16_t>(descriptors.size()), flags, 0};
    std::string body(as_text(bytes_of(fixed)));
    body += encode_descriptors(descriptors);
    body += as_text(item.payload);
    if (body.size() > endpoint_.body_bytes_max())
      status = put_aside(stream, body, exposed, item_bytes);
    else
      stream.queue_.push_back({kItem, stream.sent_, 0, std::move(body)});
  }
  if (!status.ok()) {
    exposed.exposures.revoke_all(endpoint_);
    return status;
  }
  exposed_bytes_ += exposed.exposures.bytes();
  stream.exposed_bytes_ += exposed.exposures.bytes();
  if (!exposed.exposures.empty()) stream.exposed_.push_back(std::move(exposed));
  return true;
}

// An item too long for a slot: its body is fetched too.
Status Streams::put_aside(Stream& stream, const std::string& body, Stream::ExposedItem& exposed, uint64_t item_bytes) {
  RRPC_ASSIGN_OR_RETURN(auto block, endpoint_.allocate(body.size(), endpoint::BlockKind::kShared));
  ByteWriter({block.data(), block.size()}).write_bytes(as_bytes(body));
  endpoint_.tally(&endpoint::Counters::copies);
  endpoint_.tally(&endpoint::Counters::bytes_copied, static_cast<int64_t>(body.size()));
  RRPC_RETURN_IF_ERROR(exposed.exposures.add_block(endpoint_, std::move(block)));
  const endpoint::Descriptor& descriptor = exposed.exposures.last();
  const ItemBulk bulk{stream.wire_id_, descriptor.address, descriptor.length_bytes,
                      descriptor.rkey, stream.sent_,       item_bytes};
  stream.queue_.push_back({kItemBulk, stream.sent_, 0, encode_bulk(std::as_bytes(std::span(&bulk, 1)), descriptor)});
  return {};
}

void Streams::count_sent(const StreamRef& stream, uint64_t bytes, bool more) {
  ++stream->sent_;
  stream->sent_bytes_ += bytes;
  stream->refused_bytes_.reset();
  if (stream->queue_.empty()) return;
  await_turn(stream);
  if (!more || stream->queue_.back().small >= kGatheredMax) flush();
}

void Streams::await_turn(const StreamRef& stream) {
  if (!stream->opened_ || stream->flushed() || std::exchange(stream->in_turn_, true)) return;
  turn_.push_back(stream);
}

// One message each, in turn: no stream waits for another one's queue.
void Streams::flush_some() {
  flush_windows();
  while (!turn_.empty() && endpoint_.can_send(kItem)) {
    const StreamRef stream = std::move(turn_.front());
    turn_.pop_front();
    stream->in_turn_ = false;
    if (stream->flushed()) continue;
    send_next(*stream);
    if (endpoint_.failed()) return;
    if (stream->refused_bytes_ && stream->has_room(*stream->refused_bytes_)) changed(stream, stream->room_changes_);
    await_turn(stream);
    if (stream->flushed()) stream->owner_->on_stream_idle(stream->call_id_, now_);
  }
}

// What is sent has left its queue before: a send that fails clears that.
void Streams::send_next(Stream& stream) {
  if (stream.queue_.empty()) {
    const bool asks = std::exchange(stream.ask_owed_, false);
    if (!asks) stream.end_owed_ = false;
    const auto flags = static_cast<uint8_t>(kNoItem | (asks ? kAskWindow : kStreamEnd));
    const ItemFixed fixed{stream.wire_id_, stream.sent_, 0, flags, 0};
    const Bytes part = bytes_of(fixed);
    return endpoint_.send(kItem, {&part, 1});
  }
  if (stream.queue_.front().small > 0) return send_gathered(stream);
  const Stream::QueuedMessage item = std::move(stream.queue_.front());
  stream.queue_.pop_front();
  const Bytes part = as_bytes(item.bytes);
  const auto exposed = std::ranges::find(stream.exposed_, item.sequence, &Stream::ExposedItem::sequence);
  if (exposed == stream.exposed_.end()) return endpoint_.send(item.type, {&part, 1});
  exposed->exposures.send(endpoint_, item.type, {&part, 1});
}

void Streams::send_gathered(Stream& stream) {
  Stream::QueuedMessage message = std::move(stream.queue_.front());
  stream.queue_.pop_front();
  const bool several = message.small > 1;
  const ItemFixed fixed{stream.wire_id_, message.sequence, 0, static_cast<uint8_t>(several ? kSeveralItems : 0), 0};
  const Bytes items = as_bytes(message.bytes);
  const Bytes parts[] = {bytes_of(fixed), several ? items : items.subspan(sizeof(uint32_t))};
  endpoint_.send(kItem, parts);
  spare_ = std::move(message.bytes);
}

Status Streams::on_window(const StreamRef& stream, const WindowEntry& entry) {
  const uint32_t gone = stream->queue_.empty() ? stream->sent_ : stream->queue_.front().sequence;
  const bool plausible = stream->sends_ && entry.fetched - stream->sent_fetched_ <= gone - stream->sent_fetched_ &&
                         entry.taken - stream->sent_taken_ <= entry.fetched - stream->sent_taken_ &&
                         entry.taken_bytes >= stream->sent_taken_bytes_ && entry.taken_bytes <= stream->sent_bytes_;
  if (!plausible)
    return Status::protocol_error("a window for call " + std::to_string(stream->call_id_) + " of " +
                                  std::to_string(entry.fetched) + " items fetched and " + std::to_string(entry.taken) +
                                  " taken, which were not sent");
  bool room = entry.taken != stream->sent_taken_ || entry.fetched != stream->sent_fetched_;
  stream->sent_fetched_ = entry.fetched;
  stream->sent_taken_ = entry.taken;
  stream->sent_taken_bytes_ = entry.taken_bytes;
  while (!stream->exposed_.empty() && before(stream->exposed_.front().sequence, entry.fetched)) {
    drop_exposed(*stream, stream->exposed_.front());
    stream->exposed_.pop_front();
    room = true;
  }
  if (room) changed(stream, stream->room_changes_);
  return {};
}

void Streams::drop_exposed(Stream& stream, Stream::ExposedItem& item) {
  exposed_bytes_ -= item.exposures.bytes();
  stream.exposed_bytes_ -= item.exposures.bytes();
  stream.exposed_is_full_ = false;
  item.charge = {};
  item.exposures.revoke_all(endpoint_);
}

void Streams::stop_sending(const StreamRef& stream) {
  stream->finished_ = true;
  stream->end_owed_ = stream->ask_owed_ = false;
  if (stream->queue_.empty()) return;
  const uint32_t gone = stream->queue_.front().sequence;
  while (!stream->exposed_.empty() && !before(stream->exposed_.back().sequence, gone)) {
    drop_exposed(*stream, stream->exposed_.back());
    stream->exposed_.pop_back();
  }
  stream->queue_.clear();
}

void Streams::release(const StreamRef& stream) {
  for (Stream::ExposedItem& item : stream->exposed_) drop_exposed(*stream, item);
  stream->exposed_.clear();
}

}  // namespace rrpc::rpc
