// One end of a connection: receive ring, send ring, credits, bulk transfers, exposures. No I/O of its own
// and no clock: everything goes through provider.h, everything happens in progress() or in the caller.
// Not thread-safe: the driver holds the connection's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/anonymous_mapping.h"
#include "base/bytes.h"
#include "base/memfd.h"
#include "base/status.h"
#include "endpoint/bulk_scheduler.h"
#include "endpoint/counters.h"
#include "endpoint/credits.h"
#include "endpoint/exposure.h"
#include "endpoint/header.h"
#include "endpoint/lending.h"
#include "endpoint/pool.h"
#include "endpoint/protector.h"
#include "endpoint/rails.h"
#include "endpoint/received_block.h"
#include "endpoint/registration_cache.h"
#include "endpoint/send_buffers.h"
#include "endpoint/shared_ring.h"
#include "endpoint/work_ids.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

// Message types below kControlTypeFirst are data, below kCreditType control.
constexpr uint8_t kControlTypeFirst = 64;
constexpr uint8_t kCreditType = 128;

inline MessageClass class_of(uint8_t type) {
  if (type < kControlTypeFirst) return MessageClass::kData;
  return type < kCreditType ? MessageClass::kControl : MessageClass::kCredit;
}

// Of one class of messages, at one end. Once nothing is on its way, what is out to the peer is what the peer owes, and
// that is too little to be returned on its own.
struct CreditsNow {
  uint32_t out = 0;   // of those that this end may send under
  uint32_t owed = 0;  // of those that the peer does: taken and reposted, but it wasn't told
  bool operator==(const CreditsNow&) const = default;
};

struct Geometry {
  uint32_t slots = 64;
  uint32_t slot_bytes = 8192;
  uint32_t read_depth = 16;
  size_t striped_bytes_min = kStripedBytesMin;  // less in tests
};
Status validate(const Geometry& geometry);
// The peer's, of the private data with which it connects or accepts.
Result<Offer> read_offer(Bytes private_data);
provider::QueuePairConfig queue_pair_config(const Geometry& geometry);

// What endpoints of one device share.
struct DeviceContext {
  provider::Device& device;
  Pool& pool;
  RegistrationCache& registrations;
};

class EndpointEvents {
 public:
  virtual ~EndpointEvents() = default;
  virtual void on_established() = 0;
  // `body` is valid only during the call: ring slots are never lent. An error closes the connection.
  virtual Status on_message(uint8_t type, Bytes body) = 0;
  virtual void on_transfer_finished(uint64_t cookie, provider::WcStatus status) = 0;
  // Once. Transfers still running are reported later, as their completions come.
  virtual void on_failed(const Status& status) = 0;
};

// With a `share` the receives are those of a shared ring: the queue pair was made with its queue, and geometry.slots
// are the share's. Without one, a ring of its own.
class Endpoint {
 public:
  Endpoint(DeviceContext context, std::unique_ptr<provider::CompletionQueue> cq,
           std::unique_ptr<provider::QueuePair> qp, const Geometry& geometry, uint32_t epoch, EndpointEvents& events,
           ReceiveShare share = {});
  ~Endpoint();

  // Posts every receive, then offers or accepts the connection.
  Status start();
  // Polls once, delivers events, returns credits. Gives the number of completions handled, and one more
  // where only bytes moved.
  size_t progress();
  void arm() { cq_->arm(); }
  void arm_for_solicited() { cq_->arm_for_solicited(); }
  bool knows_solicited() const { return cq_->knows_solicited(); }
  bool disarm() { return cq_->disarm(); }
  void look_at_wait_handles() { cq_->look_at_wait_handles(); }
  // After progress() that handled nothing, as CompletionQueue has it: nor is there anything else to be done.
  provider::NextMessage next_message() const {
    const bool calm = established_ && !failed() && bulk_.idle() && !bulk_.has_finished() && retiring_.empty();
    return calm ? cq_->next_message() : provider::NextMessage();
  }
  bool polls_cheaply() const { return cq_->polls_cheaply(); }
  bool handles_tell_all() const { return cq_->handles_tell_all(); }
  // In the last progress(), which then handled something.
  bool moved_bytes() const { return cq_->moved_bytes(); }
  void append_wait_handles(std::vector<provider::WaitHandle>& out) const { cq_->append_wait_handles(out); }

  // With the connection's mutex.
  void tally(std::atomic<int64_t> Counters::* counter, int64_t amount = 1) { traffic_.count(counter, amount); }
  // Of this connection; what isn't counted by connection stays 0.
  const Counters& traffic() const { return traffic_; }

  bool established() const { return established_; }
  bool failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }
  const provider::QueuePair& queue_pair() const { return *qp_; }
  bool holds_device() const { return qp_->holds_device() || (rails_ && rails_->hold_device()); }
  void release_device() {
    qp_->release_device();
    if (rails_) rails_->release_device();
  }
  CreditsNow data_credits() const { return {send_data_.in_flight(), receive_data_.unannounced()}; }
  CreditsNow control_credits() const { return {send_control_.in_flight(), receive_control_.unannounced()}; }
  bool owes_credits() const { return receive_data_.owes_return() || receive_control_.owes_return(); }
  // Messages that came and transfers that went well: what only a live peer brings about.
  uint64_t signs_of_life() const { return signs_of_life_; }

  size_t body_bytes_max() const { return body_bytes_max_; }
  // Of one message to the peer: what both ends allow, once they have said so.
  uint32_t descriptors_max() const { return descriptors_max_; }
  void set_descriptors_max(uint32_t count) { descriptors_max_ = count; }
  bool can_send(uint8_t type) const {
    // A dead queue pair is found by progress(), once what came before its end is delivered.
    return may_send(class_of(type)) && !send_buffers_.used_up() && qp_->state() != provider::QueuePairState::kError;
  }
  // Messages that were sent have all the buffers there are.
  bool lacks_send_buffers() const { return send_buffers_.used_up(); }
  // The parts become one message. Only when can_send(); the bytes are taken before the call returns.
  // One that isn't solicited may lie there until the peer looks of itself, where that sleeps for solicited ones only.
  void send(uint8_t type, std::span<const Bytes> parts, Pushes pushes = {}, bool solicited = true);
  // send() without its parts: the body is written to where this says, all of it, and commit_message() sends it before
  // anything else is done with the connection. Null: no message was begun, and where can_send() send() does it.
  std::byte* begin_message(uint8_t type, size_t body_bytes);
  void commit_message() {
    if (messages_complete_) [[unlikely]]
      return commit_counted();
    holds_ = qp_->commit_message(hold_, provider::QueuePair::kNoCompletion);
  }
  // Whether a message may close a range that the peer has exposed, so that the peer needn't do it itself.
  bool invalidates() const { return invalidates_; }
  // The message that is sent next, at once, closes it. Only where invalidates(), with a key that is still open.
  void invalidate_with_next(uint32_t rkey) { next_invalidates_ = rkey; }
  // While one lives, a small message may wait for the next one, so that several go out with one doorbell. It waits
  // until one is sent without, until ring(), or until the next progress().
  class Holding {
   public:
    Holding(Endpoint& endpoint, bool holds) : endpoint_(endpoint), before_(endpoint.hold_) { endpoint.hold_ = holds; }
    ~Holding() { endpoint_.hold_ = before_; }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    Endpoint& endpoint_;
    const bool before_;
  };
  // Whether a message waits for the next one.
  bool holds() const { return holds_; }
  // Sends what waits.
  void ring() {
    if (std::exchange(holds_, false)) qp_->ring();
  }
  // Whether those are of use.
  bool pushes() const { return limits_.pushed_bytes_max > 0; }

  // See BulkScheduler. Ends in on_transfer_finished().
  void start_transfer(uint64_t cookie, provider::Opcode opcode, std::vector<TransferSegment> segments);
  void cancel_transfer(uint64_t cookie);
  // See BulkScheduler.
  bool transfers_under_way() const { return !bulk_.idle(); }
  bool transfers_stalled(TimeNs now, TimeNs timeout) { return bulk_.stalled(now, timeout); }
  bool transfers_idle() const { return bulk_.idle() && !bulk_.has_finished(); }
  bool lingering() const { return cq_->lingering(); }

  uint32_t epoch() const { return epoch_; }
  uint32_t peer_epoch() const { return peer_epoch_; }
  // Every message from now on, in both directions, and every range exposed from now on has a tag, and is encrypted
  // where the mode says so. To be called once, when HELLO is all that either end has sent.
  void protect(provider::Protection mode, DirectionCiphers out, DirectionCiphers in, const KeyLimits& limits);
  // Whether descriptors have seals.
  bool seals() const { return protector_ != nullptr; }
  bool encrypts() const { return protector_ != nullptr && protector_->encrypts(); }
  // What so many bytes take while they are exposed: themselves, and their ciphertext where there is one.
  size_t bytes_kept(size_t exposed_bytes) const { return encrypts() ? 2 * exposed_bytes : exposed_bytes; }

  // Connects or accepts a rail (rails.h): what Rails::add() says. FailedPrecondition over a connection that is
  // protected, since nothing shows that a rail's other end is this peer, or whose receives are shared.
  Status add_rail(size_t index, RailQueues& queues, const RailToken& token, TimeNs deadline);
  bool may_add_rail(size_t index) const { return !rails_ || rails_->may_be_replaced(index); }
  TimeNs next_rail_deadline() const { return rails_ ? rails_->next_deadline() : kNever; }
  void expire_rails(TimeNs now) {
    if (rails_) rails_->expire(now);
  }
  RailState rail_state(size_t index) { return rails_ ? rails_->state(index) : RailState::kNone; }
  std::string why_no_rail(size_t index) { return rails_ ? rails_->why_not(index) : "it wasn't dialled yet"; }

  // Lends buffers that say so from now on, so many bytes at most: the peer knows how to borrow.
  void set_lending(size_t limit_bytes) { lent_ = std::make_shared<LentBytes>(limit_bytes); }
  // A range that the peer lends, to be read in place; null where it has to be fetched.
  ReceivedBlock borrow(const Descriptor& descriptor);
  // Opens a buffer to the peer; staged in pool memory where the peer can't reach it, or encrypted. Pieces only where
  // encrypts(): they become one range. `pieces_max`: of its seal.
  Result<Exposure> expose(Buffer buffer, uint32_t access, uint32_t pieces_max = kSealPiecesMax);
  // Of a sealed buffer that has changed since, and of which the peer doesn't know yet.
  Status seal_again(Exposure& exposure);
  // Its memory stays until the revocation is over, which may be after a later progress(), or the queue pair is gone.
  void revoke(Exposure exposure);
  size_t revocations_under_way() const { return retiring_.size(); }
  size_t pool_limit_bytes() const { return context_.pool.limit_bytes(); }
  Result<PoolBlock> allocate(size_t length_bytes, BlockKind kind) { return context_.pool.allocate(length_bytes, kind); }
  // For memory that a transfer works on.
  Result<RegionRef> region_for(std::byte* address, size_t length_bytes, uint64_t owner_id = kNoOwner);
  // For memory that READs land in. Null where there is nothing to land. Held by the transfer alone: where the device
  // wants dedicated read sinks it is registered for this transfer.
  Result<RegionRef> sink_region_for(std::byte* address, size_t length_bytes, uint64_t owner_id = kNoOwner);

  // Ends the connection; `reason` reaches the peer where it can.
  void close(const Status& reason);
  // Last of all: takes every buffer back from the device, so that its memory may go.
  void destroy_queue_pair();

 private:
  // A credit and a place in the send queue, of a connection that lives as far as this end knows.
  bool may_send(MessageClass message_class) const {
    if (!established_ || failed()) return false;
    if (message_class == MessageClass::kData)  // the control reserve holds in the own send queue too
      return send_data_.open() && sends_unretired_ + kControlSlots < send_slot_count_;
    return sends_unretired_ < send_slot_count_ && (message_class == MessageClass::kCredit || send_control_.open());
  }
  Result<RegionRef> register_for_transfer(std::byte* address, size_t length_bytes, bool read_sink);
  Status allocate_ring();
  provider::ReceiveRequest slot_request(uint32_t slot) const {
    if (share_) return share_.ring().request(slot);
    return {kTagReceive | slot,
            {ring_ + size_t{slot} * geometry_.slot_bytes, geometry_.slot_bytes, ring_region_.get()}};
  }
  Status post_slots();
  void establish();
  Status adopt_offer();
  void fail(const Status& status);
  void handle(const provider::Completion& completion);
  void handle_receive(uint32_t slot, const provider::Completion& completion);
  bool take_message(uint32_t slot, const provider::Completion& completion, MessageClass& message_class);
  Status deliver(const MessageHeader& header, Bytes message);
  Status deliver_plain(const MessageHeader& header, Bytes message);
  [[gnu::cold]] Status deliver_otherwise(Bytes message);
  Status count_arrival(MessageClass message_class);
  bool take_header(const MessageHeader& header, Bytes message);
  [[gnu::cold]] Status what_is_wrong(const MessageHeader& header, Bytes message) const;
  Status repost(std::span<const provider::ReceiveRequest> requests);
  void reposted(MessageClass message_class) {
    if (message_class == MessageClass::kData) receive_data_.on_reposted();
    if (message_class == MessageClass::kControl) receive_control_.on_reposted();
  }
  void repost_gathered();
  void give_back_shared_receives();
  void tally_transfer(const FinishedTransfer& finished);
  size_t deliver_finished_transfers();
  void return_credits() {
    if (owes_credits() && can_send(kCreditType)) send(kCreditType, {});
  }
  void pump();
  Status stage(Exposure& exposure, Bytes bytes);
  Result<PoolBlock> allocate_staged(Exposure& exposure, size_t length_bytes);
  // endpoint_protection.cc
  Result<Exposure> expose_sealed(Buffer buffer, uint32_t access, uint32_t pieces_max);
  Status encrypt(Exposure& exposure, const Buffer& buffer, uint32_t pieces_max);
  [[gnu::cold]] void send_protected(MessageHeader& header, std::span<const Bytes> parts, Pushes pushes);
  size_t go_on_with_bulk();
  size_t check_landed();
  Status lend(Exposure& exposure, const Buffer& buffer);
  void open_on_rails(Exposure& exposure);
  Status open_to_peer(Exposure& exposure, std::byte* address, uint64_t owner_id, uint32_t access);
  void count_closed(const Exposure& exposure);
  bool still_revoking(const Exposure& exposure) const;
  size_t let_go_of_revoked();
  MessageHeader take_credit(uint8_t type, size_t body_bytes);
  void post_message(const MessageHeader& header, std::span<const Bytes> parts, Pushes pushes, bool solicited = true);
  // Whether nothing but its bytes goes with the next message, so that its place may be reserved.
  bool bytes_alone(Pushes pushes) const { return pushes.empty() && next_invalidates_ == 0; }
  void commit_counted();
  struct SendId {
    uint64_t wr_id;
    bool signalled = false;
  };
  SendId take_send_place(const SendBuffers::Buffer& buffer);
  SendBuffers::Buffer join(std::span<const provider::Sge> parts);

  DeviceContext context_;
  ConnectionCounters traffic_;
  EndpointEvents& events_;
  const Geometry geometry_;
  const uint32_t epoch_;
  uint32_t peer_epoch_ = 0;
  bool established_ = false;
  bool takes_plain_ = false;  // messages come without a tag
  bool in_progress_ = false;
  std::array<provider::Completion, kCompletionsMax> completions_;  // of the poll under way
  // Slots of the messages of one poll, where it found several: reposted together at its end, or before a message goes
  // out, which grants what was reposted.
  struct Emptied {
    uint32_t slot;
    MessageClass message_class;  // kCredit: nothing is granted for it
  };
  std::array<Emptied, kCompletionsMax> gathered_;
  size_t gathered_count_ = 0;
  bool gathers_ = false;
  uint64_t signs_of_life_ = 0;
  Status failure_;

  ReceiveShare share_;             // given back after the queue pair's end
  SharedMapping shared_ring_;      // where the peer itself writes receives
  AnonymousMapping private_ring_;  // elsewhere
  std::byte* ring_ = nullptr;      // in one of them: the receive slots, unless shared
  std::unique_ptr<provider::MemoryRegion> ring_region_;
  SendBuffers send_buffers_;              // not started where every message fits inline
  std::shared_ptr<PeerPool> peer_pool_;   // of a peer that doesn't reach the process's; made when needed
  std::vector<Exposure> retiring_;        // revocations under way
  std::shared_ptr<LentBytes> lent_;       // null: nothing is lent to this peer
  std::unique_ptr<Protector> protector_;  // null: messages and ranges go as they are
  std::unique_ptr<provider::CompletionQueue> cq_;
  std::unique_ptr<provider::QueuePair> qp_;  // destroyed before what it works on
  std::unique_ptr<Rails> rails_;             // null: there were none
  const provider::QueuePairLimits& limits_;  // its

  SendWindow send_data_;
  SendWindow send_control_;
  ReceiveWindow receive_data_;
  ReceiveWindow receive_control_;
  uint32_t arrived_unpaid_ = 0;  // data messages since the peer's last credit, while there is none left
  uint32_t descriptors_max_ = 0;
  size_t body_bytes_max_ = 0;
  size_t plain_bytes_end_ = 0;  // shorter bodies go without a tag; 0: none does

  const bool messages_complete_;
  uint32_t send_slot_count_ = 0;
  uint32_t sends_unretired_ = 0;  // posted, not known to be complete
  uint32_t sends_since_signal_ = 0;
  bool hold_ = false;   // messages may wait for the next one
  bool holds_ = false;  // one does
  bool invalidates_ = false;
  uint32_t next_invalidates_ = 0;  // 0: nothing
  BulkScheduler bulk_;
};

// The header of a message that is going to be sent: with it goes what this end has to grant.
inline MessageHeader Endpoint::take_credit(uint8_t type, size_t body_bytes) {
  MessageHeader header;
  header.type = type;
  header.body_bytes = static_cast<uint32_t>(body_bytes);
  header.epoch = epoch_;
  header.data_granted = receive_data_.granted();
  header.control_granted = receive_control_.granted();
  const MessageClass message_class = class_of(type);
  if (message_class == MessageClass::kData) send_data_.take();
  if (message_class == MessageClass::kControl) send_control_.take();
  receive_data_.announced();
  receive_control_.announced();
  tally(&Counters::messages_sent);
  tally(&Counters::bytes_inline_sent, header.body_bytes);
  return header;
}

inline std::byte* Endpoint::begin_message(uint8_t type, size_t body_bytes) {
  if (gathered_count_ > 0) [[unlikely]]
    repost_gathered();
  if (!may_send(class_of(type)) || body_bytes >= plain_bytes_end_) [[unlikely]]
    return nullptr;
  std::byte* const slot = qp_->reserve_message(static_cast<uint32_t>(sizeof(MessageHeader) + body_bytes));
  if (slot == nullptr) return nullptr;
  take_credit(type, body_bytes).write(slot);
  return slot + sizeof(MessageHeader);
}

}  // namespace rrpc::endpoint
