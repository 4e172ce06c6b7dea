#include "endpoint/endpoint.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "endpoint/counters.h"
#include "endpoint/work_ids.h"

namespace rrpc::endpoint {

using provider::Completion;
using provider::Opcode;
using provider::QueuePairState;
using provider::WcStatus;

namespace {

uint32_t send_slots_for(const Geometry& geometry) { return geometry.slots * 2; }

// Data messages that may be out from one end to the other. Both ends must come to the same number: a receiver that
// thought the window larger would return credits too late for a sender that has used them up.
uint32_t data_window(uint32_t sender_slots, uint32_t receiver_slots) {
  return std::min(receiver_slots, sender_slots * 2) - kControlSlots;
}

}  // namespace

Result<Offer> read_offer(Bytes private_data) {
  ByteReader reader(private_data);
  const auto offer = reader.read<Offer>();
  if (reader.failed()) return Status::protocol_error("the peer's connection offer is cut short");
  if (offer.magic != kOfferMagic)
    return Status::protocol_error("the peer's connection offer has a wrong magic: not rrpc");
  if (offer.version != kWireVersion)
    return Status::protocol_error("the peer speaks rrpc wire version " + std::to_string(offer.version) + ", this end " +
                                  std::to_string(kWireVersion) + "; use the same release on both ends");
  // Some transports pad with zeros what was cut off.
  if (!validate({offer.slots, offer.slot_bytes, 1}).ok())
    return Status::protocol_error("the peer offers an impossible ring of " + std::to_string(offer.slots) +
                                  " slots of " + std::to_string(offer.slot_bytes) + " bytes" +
                                  (offer.slot_bytes == 0 ? ": its connection offer is cut short" : ""));
  return offer;
}

Status validate(const Geometry& geometry) {
  const uint32_t slots = geometry.slots;
  if (slots < kRingSlotsMin || slots > kRingSlotsMax || (slots & (slots - 1)) != 0)
    return invalid_argument("slots must be a power of two from " + std::to_string(kRingSlotsMin) + " to " +
                            std::to_string(kRingSlotsMax) + ", not " + std::to_string(slots));
  const uint32_t bytes = geometry.slot_bytes;
  if (bytes < kSlotBytesMin || bytes > kSlotBytesMax || bytes % 64 != 0)
    return invalid_argument("slot_bytes must be a multiple of 64 from " + std::to_string(kSlotBytesMin) + " to " +
                            std::to_string(kSlotBytesMax) + ", not " + std::to_string(bytes));
  if (geometry.read_depth == 0) return invalid_argument("read_depth must be at least 1");
  return {};
}

provider::QueuePairConfig queue_pair_config(const Geometry& geometry) {
  return {send_slots_for(geometry) + geometry.read_depth, geometry.slots, geometry.read_depth};
}

Endpoint::Endpoint(DeviceContext context, std::unique_ptr<provider::CompletionQueue> cq,
                   std::unique_ptr<provider::QueuePair> qp, const Geometry& geometry, uint32_t epoch,
                   EndpointEvents& events, ReceiveShare share)
    : context_(context),
      events_(events),
      geometry_(geometry),
      epoch_(epoch),
      share_(std::move(share)),
      cq_(std::move(cq)),
      qp_(std::move(qp)),
      limits_(qp_->limits()),
      messages_complete_(limits_.messages_complete),
      send_slot_count_(send_slots_for(geometry)),
      bulk_(std::max(1u, std::min(geometry.read_depth, limits_.read_depth)),
            std::min<size_t>(kReadChunkBytes, limits_.message_bytes_max)) {}

Endpoint::~Endpoint() {
  destroy_queue_pair();  // takes every posted buffer back before the ring goes
}

Status Endpoint::allocate_ring() {
  if (limits_.inline_bytes_max < geometry_.slot_bytes)
    RRPC_RETURN_IF_ERROR(send_buffers_.start(context_.device, *qp_, send_slot_count_, geometry_.slot_bytes));
  if (share_) return {};
  const size_t bytes = size_t{geometry_.slots} * geometry_.slot_bytes;
  const bool shared = limits_.receives_in_shared_memory;
  if (shared) {
    RRPC_ASSIGN_OR_RETURN(shared_ring_, SharedMapping::create("rrpc-ring", bytes, true));
  } else {
    RRPC_ASSIGN_OR_RETURN(private_ring_, AnonymousMapping::create(bytes));
  }
  ring_ = shared ? shared_ring_.data() : private_ring_.data();
  RRPC_ASSIGN_OR_RETURN(ring_region_, context_.device.register_memory({ring_, bytes, shared_ring_.fd(), shared}));
  return qp_->adopt(*ring_region_);
}

Status Endpoint::post_slots() {
  std::vector<provider::ReceiveRequest> requests;
  requests.reserve(geometry_.slots);
  for (uint32_t slot = 0; slot < geometry_.slots; ++slot) requests.push_back(slot_request(slot));
  return qp_->post_receives(requests);
}

Status Endpoint::start() {
  // Who knows before accepting that the peer can't be understood rejects it, with the reason.
  if (const Bytes offered = qp_->peer_private_data(); !offered.empty()) {
    if (Status status = read_offer(offered).status(); !status.ok()) {
      qp_->disconnect(status.message());
      return status;
    }
  }
  const provider::QueuePairConfig needed = queue_pair_config(geometry_);
  const uint32_t send_depth = needed.send_depth - needed.read_depth + std::min(needed.read_depth, limits_.read_depth);
  if (limits_.send_depth < send_depth || (!share_ && limits_.receive_depth < needed.receive_depth))
    return resource_exhausted("a ring of " + std::to_string(geometry_.slots) + " slots needs queues of " +
                              std::to_string(send_depth) + " sends and " + std::to_string(needed.receive_depth) +
                              " receives, the device gives " + std::to_string(limits_.send_depth) + " and " +
                              std::to_string(limits_.receive_depth));
  RRPC_RETURN_IF_ERROR(allocate_ring());
  if (!share_) RRPC_RETURN_IF_ERROR(post_slots());
  Offer offer;
  offer.slots = geometry_.slots;
  offer.slot_bytes = geometry_.slot_bytes;
  offer.epoch = epoch_;
  if (limits_.invalidates) offer.flags |= kOfferInvalidates;
  RRPC_RETURN_IF_ERROR(qp_->start(std::as_bytes(std::span(&offer, 1))));
  shared_ring_.close_fd();  // the peer has it
  return {};
}

Status Endpoint::adopt_offer() {
  RRPC_ASSIGN_OR_RETURN(const Offer offer, read_offer(qp_->peer_private_data()));
  peer_epoch_ = offer.epoch;
  invalidates_ = limits_.invalidates && (offer.flags & kOfferInvalidates) != 0;
  body_bytes_max_ = std::min(offer.slot_bytes, geometry_.slot_bytes) - sizeof(MessageHeader);
  plain_bytes_end_ = body_bytes_max_ + 1;
  send_data_ = SendWindow(data_window(geometry_.slots, offer.slots));
  receive_data_ = ReceiveWindow(data_window(offer.slots, geometry_.slots));
  send_control_ = SendWindow(kControlSlotsCounted);
  receive_control_ = ReceiveWindow(kControlSlotsCounted);
  return {};
}

void Endpoint::establish() {
  if (Status status = adopt_offer(); !status.ok()) return close(status);
  established_ = takes_plain_ = true;
  events_.on_established();
}

// Says why take_header() refused a header.
Status Endpoint::what_is_wrong(const MessageHeader& header, Bytes message) const {
  const auto excess = [](const SendWindow& window, uint32_t granted, const std::string& what) {
    return Status::protocol_error("the peer returned " + std::to_string(window.returned_by(granted)) + what +
                                  " credits, only " + std::to_string(window.in_flight()) + " were out");
  };
  if (message.size() < sizeof(header))
    return Status::protocol_error("a message of " + std::to_string(message.size()) +
                                  " bytes is shorter than its header");
  if (header.magic != kHeaderMagic) return Status::protocol_error("a message with a wrong magic");
  if (header.body_bytes != message.size() - sizeof(header))
    return Status::protocol_error("a message of " + std::to_string(message.size()) + " bytes announces a body of " +
                                  std::to_string(header.body_bytes));
  if (header.epoch != peer_epoch_) return Status::protocol_error("a message of another connection's epoch");
  if (header.type > kCreditType) return Status::protocol_error("unknown message type " + std::to_string(header.type));
  if (send_data_.returned_by(header.data_granted) > send_data_.in_flight())
    return excess(send_data_, header.data_granted, " data");
  return excess(send_control_, header.control_granted, " control");
}

inline bool Endpoint::take_header(const MessageHeader& header, Bytes message) {
  const bool sound = message.size() >= sizeof(header) && header.magic == kHeaderMagic &&
                     header.body_bytes == message.size() - sizeof(header) && header.epoch == peer_epoch_ &&
                     header.type <= kCreditType;
  if (!sound) return false;
  if (send_data_.returned_by(header.data_granted) != 0) arrived_unpaid_ = 0;
  return send_data_.on_grant(header.data_granted) && send_control_.on_grant(header.control_granted);
}

// A peer that has taken all of this end's messages can't send a whole window more without saying so: what it needs
// for that, this end's grants, stands behind them.
inline Status Endpoint::count_arrival(MessageClass message_class) {
  if (message_class == MessageClass::kControl && !receive_control_.on_arrival())
    return Status::protocol_error("the peer sent more control messages than it had credits for");
  if (message_class != MessageClass::kData) return {};
  if (!receive_data_.on_arrival())
    return Status::protocol_error("the peer sent more data messages than it had credits for");
  arrived_unpaid_ = send_data_.open() ? 0 : arrived_unpaid_ + 1;
  if (arrived_unpaid_ > 2 * receive_data_.size())
    return Status::protocol_error("the peer goes on sending but takes no messages: it gives no credits for them");
  return {};
}

inline Status Endpoint::deliver(const MessageHeader& header, Bytes message) {
  if (!takes_plain_) [[unlikely]]
    return deliver_otherwise(message);
  return deliver_plain(header, message);
}

Status Endpoint::deliver_otherwise(Bytes message) {
  if (!established_) return Status::protocol_error("a message arrived before the connection was established");
  RRPC_RETURN_IF_ERROR(protector_->open_message(message));
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  return deliver_plain(header, message);
}

inline Status Endpoint::deliver_plain(const MessageHeader& header, Bytes message) {
  if (!take_header(header, message)) [[unlikely]]
    return what_is_wrong(header, message);
  const MessageClass message_class = class_of(header.type);
  RRPC_RETURN_IF_ERROR(count_arrival(message_class));
  tally(&Counters::messages_received);
  tally(&Counters::bytes_inline_received, static_cast<int64_t>(header.body_bytes));
  if (message_class == MessageClass::kCredit) return {};
  return events_.on_message(header.type, message.subspan(sizeof(header)));
}

// Of a message that may be another process's to change: read once.
inline MessageHeader read_header(Bytes message) {
  if (message.size() < sizeof(MessageHeader)) return {};
  std::array<std::byte, sizeof(MessageHeader)> bytes;
  std::memcpy(bytes.data(), message.data(), bytes.size());
  return std::bit_cast<MessageHeader>(bytes);
}

// False: the connection has failed, maybe of this message.
inline bool Endpoint::take_message(uint32_t slot, const Completion& completion, MessageClass& message_class) {
  if (failed()) return false;
  ++signs_of_life_;
  const std::byte* data = completion.place;
  if (data == nullptr) data = share_ ? share_.ring().slot(slot) : ring_ + size_t{slot} * geometry_.slot_bytes;
  const Bytes message(data, completion.length_bytes);
  const MessageHeader header = read_header(message);
  message_class = class_of(header.type);
  const auto deliver_it = [&]() -> Status {
    try {
      return deliver(header, message);
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    }
  };
  if (const Status status = deliver_it(); !status.ok()) [[unlikely]]
    close(status);
  return !failed();
}

inline Status Endpoint::repost(std::span<const provider::ReceiveRequest> requests) {
  if (share_) return share_.ring().repost(requests);  // others want them, whatever became of this connection
  if (failed()) return {};
  Status posted = requests.size() == 1 ? qp_->post_receive(requests.front()) : qp_->post_receives(requests);
  return posted.ok() || qp_->state() != QueuePairState::kError ? std::move(posted) : Status();
}

void Endpoint::repost_gathered() {
  const std::span<const Emptied> emptied(gathered_.data(), std::exchange(gathered_count_, 0));
  std::array<provider::ReceiveRequest, kCompletionsMax> requests;
  for (size_t i = 0; i < emptied.size(); ++i) requests[i] = slot_request(emptied[i].slot);
  if (Status posted = repost(std::span(requests).first(emptied.size())); !posted.ok()) return fail(posted);
  for (const Emptied& one : emptied) reposted(one.message_class);
}

inline void Endpoint::handle_receive(uint32_t slot, const Completion& completion) {
  MessageClass message_class = MessageClass::kCredit;
  const bool taken = completion.status == WcStatus::kSuccess && take_message(slot, completion, message_class);
  if (!taken) message_class = MessageClass::kCredit;
  if (!taken || share_ || !qp_->post_again(completion.wr_id)) [[unlikely]] {
    if (gathers_) {
      gathered_[gathered_count_++] = {slot, message_class};
      return;
    }
    const provider::ReceiveRequest request = slot_request(slot);
    if (Status posted = repost({&request, 1}); !posted.ok()) return fail(posted);
  }
  // Only now: a grant before the repost would invite a send that finds no receive.
  reposted(message_class);
}

inline void Endpoint::handle(const Completion& completion) {
  const auto value = static_cast<uint32_t>(completion.wr_id);
  if (completion.wr_id >> kTagShift == kTagReceive >> kTagShift) [[likely]]
    return handle_receive(value, completion);
  switch (completion.wr_id & kTagMask) {
    case kTagSend:
      if (completion.status != WcStatus::kSuccess) return;
      sends_unretired_ -= value;
      send_buffers_.done(value);
      return;
    case kTagBulk:
      if (completion.status == WcStatus::kSuccess) ++signs_of_life_;
      bulk_.on_completion(value, completion.status);
      return;
    default:
      RRPC_CHECK(false, "a completion with an unknown work request id");
  }
}

size_t Endpoint::progress() {
  in_progress_ = true;
  const size_t polled = cq_->poll(completions_);
  size_t handled = polled > 0 ? polled : cq_->moved_bytes();
  // First, since the peer's first message can't be understood before its offer; then when nothing came, as messages
  // that came before the end are delivered before it.
  const bool looks = polled == 0 || !established_;
  const QueuePairState state = looks ? qp_->state() : QueuePairState::kConnected;
  if (!established_ && !failed()) [[unlikely]] {
    const bool came_and_went = state == QueuePairState::kError && !qp_->peer_private_data().empty();
    if (state == QueuePairState::kConnected || came_and_went) establish(), ++handled;
  }
  if (gathered_count_ > 0) repost_gathered();  // memory ended amid the last poll
  gathers_ = polled > 1;
  for (size_t i = 0; i < polled; ++i) handle(completions_[i]);
  if (gathered_count_ > 0) repost_gathered();
  if (bulk_.has_finished()) handled += deliver_finished_transfers();
  if (state == QueuePairState::kError && polled < completions_.size() && !failed() && !bulk_.has_landed()) {
    fail(qp_->error());
    ++handled;
  }
  if (!failed() && established_) {
    if (!bulk_.idle()) handled += go_on_with_bulk();
    return_credits();
  }
  if (bulk_.has_finished()) handled += deliver_finished_transfers();
  if (!retiring_.empty()) handled += let_go_of_revoked();
  in_progress_ = false;
  return handled;
}

void Endpoint::give_back_shared_receives() {
  qp_->disconnect("the connection was closed");
  if (gathered_count_ > 0) repost_gathered();
  while (const size_t polled = cq_->poll(completions_)) {
    for (const Completion& completion : std::span(completions_).first(polled))
      if ((completion.wr_id & kTagMask) == kTagReceive)
        gathered_[gathered_count_++] = {static_cast<uint32_t>(completion.wr_id & ~kTagMask), MessageClass::kCredit};
    repost_gathered();
  }
}

void Endpoint::tally_transfer(const FinishedTransfer& finished) {
  const bool is_read = finished.opcode == Opcode::kRead;
  tally(is_read ? &Counters::reads : &Counters::writes);
  tally(is_read ? &Counters::bytes_read : &Counters::bytes_written, static_cast<int64_t>(finished.length_bytes));
  if (finished.bytes_by_rails > 0) tally(&Counters::bytes_read_by_rails, static_cast<int64_t>(finished.bytes_by_rails));
}

size_t Endpoint::deliver_finished_transfers() {
  size_t delivered = 0;
  while (bulk_.has_finished()) {  // an event may start a transfer that ends at once
    for (const FinishedTransfer& finished : bulk_.take_finished()) {
      if (finished.status == WcStatus::kSuccess) tally_transfer(finished);
      // The reason first, so that nothing ends with no other reason than "flushed". What succeeded came before.
      if (finished.status == WcStatus::kFlushed && qp_->state() == QueuePairState::kError) fail(qp_->error());
      try {
        events_.on_transfer_finished(finished.cookie, finished.status);
      } catch (const std::bad_alloc&) {
        close(out_of_memory());
      }
      ++delivered;
    }
  }
  return delivered;
}

void Endpoint::fail(const Status& status) {
  if (failed()) return;
  failure_ = status.ok() ? unavailable("the connection ended") : status;
  // Where this end alone has failed the peer is told, and nothing of it arrives any more while exposures are revoked.
  if (qp_->state() != QueuePairState::kError) qp_->disconnect(failure_.message());
  if (rails_) rails_->disconnect(failure_.message());
  bulk_.cancel_all();
  events_.on_failed(failure_);
}

void Endpoint::close(const Status& reason) {
  if (failed()) return;
  qp_->disconnect(reason.message());
  fail(reason);
}

}  // namespace rrpc::endpoint
