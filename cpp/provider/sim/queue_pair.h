// One end of a simulated connection. Its sides have a file each: the connection itself (queue_pair.cc), what it
// asks of its peer (requester.cc) and what it does for its peer (responder.cc); exposures.cc has the memory open to it.
// Methods named on_* run when a message arrives.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "provider/exposure_table.h"
#include "provider/sim/channel.h"
#include "provider/sim/completion_queue.h"
#include "provider/sim/shared_receive_queue.h"

namespace rrpc::provider::sim {

// What a client's connection request carries to the listener.
struct Offer {
  uint32_t client_number = 0;
  Host* client_host = nullptr;
  uint32_t read_depth = 0;
  std::vector<std::byte> private_data;
};

class SimQueuePair : public QueuePair {
 public:
  // A client with the address it will dial, or, with an empty one, a server that adopts an offer.
  SimQueuePair(Fabric& fabric, Host* host, SimCompletionQueue& cq, const QueuePairConfig& config, std::string address);
  ~SimQueuePair() override;

  QueuePairState state() const override { return state_; }
  const Status& error() const override { return error_; }
  const QueuePairLimits& limits() const override { return limits_; }
  Status start(Bytes private_data) override;
  Bytes peer_private_data() const override { return peer_private_data_; }
  std::string peer_description() const override;
  std::string local_description() const override { return "sim"; }
  std::string_view bulk_method() const override { return "sim"; }
  Status post_receive(const ReceiveRequest& request) override;
  // As verbs has it, where the plan's limits say that such messages complete.
  bool post_again(uint64_t wr_id) override;
  std::byte* reserve_message(uint32_t length_bytes) override;
  bool commit_message(bool more, uint64_t wr_id) override;
  bool holds() const override { return holds_; }
  void ring() override { launch_ready(); }
  Status post_send(std::span<const WorkRequest> requests) override;
  Result<uint32_t> expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override;
  bool revoke(uint32_t rkey) override;
  bool revoking(uint32_t rkey) const override;
  ExposureKind exposure_kind() const override { return fabric_.plan.exposure_kind; }
  Status adopt(const MemoryRegion& region) override;
  void disconnect(const std::string& reason) override;

  Host* host() const { return host_; }
  Host* peer_host() const { return peer_host_; }
  void take_offer(const Offer& offer);
  // The peer or the way to it is lost: the plan decides whether this end is told.
  void notice_loss();
  // Copies what is on its way, so that its memory need not be looked at again.
  void detach_sends();

  void on_refused(const std::string& why);
  void on_accepted(std::vector<std::byte> private_data, uint32_t read_depth);
  void on_ready();
  void on_peer_closed();
  // Gives the completion's `place`.
  const std::byte* on_polled(const CompletionEntry& entry);

 private:
  using SendRequestPtr = std::shared_ptr<SendRequest>;
  using ReceiveSlotPtr = std::shared_ptr<ReceiveSlot>;

  // Connection.
  void dial(Bytes private_data);
  void connect_to(Host* peer_host, uint32_t peer_number);
  void note_private_data(std::vector<std::byte> private_data);
  void become_connected(std::vector<std::byte> private_data);
  void lose();
  void close_down(Status why);
  void enter_error(Status why);
  void flush_sends();
  void end_exposure(uint32_t rkey);
  void drop_exposures(bool revoking_too);
  void give_up(const ReceiveSlot& slot);
  void violation(const std::string& text);
  bool claim(const Sge& sge, Piece& piece);

  // Completions.
  void complete_send(const SendRequestPtr& request);
  void complete_receive(const ReceiveSlotPtr& slot, WcStatus status, uint32_t length_bytes);
  void make_visible_later(CompletionEntry entry, TimeNs& last_visible);
  void make_visible(const CompletionEntry& entry);
  void release_sends(uint64_t last_sequence);
  void verify_source(const SendRequest& request);
  void verify_slot(const ReceiveSlot& slot);

  // Requester.
  Status check_request(const WorkRequest& request) const;
  void post_one(const WorkRequest& request);
  void enqueue(SendRequestPtr request);
  void check_sinks(SendRequest& request);
  void launch_ready();
  void launch(const SendRequestPtr& request);
  void launch_read(const SendRequestPtr& request);
  void expire_later(const SendRequestPtr& request);
  void finish(const SendRequestPtr& request, WcStatus status);
  void retire();
  void on_answer(const SendRequestPtr& request, WcStatus status);
  void on_read_piece(const SendRequestPtr& request, size_t offset_bytes, Bytes bytes, uint32_t piece_count);

  // Responder.
  bool serves() const { return state_ == QueuePairState::kConnected && !refused_; }
  ReceiveSlotPtr next_receive();
  void on_send(const SendRequestPtr& request);
  void on_write(const SendRequestPtr& request);
  void on_read(const SendRequestPtr& request);
  void sample(const SendRequestPtr& request, size_t offset_bytes, size_t length_bytes, uint32_t piece_count);
  void answer(const SendRequestPtr& request, WcStatus status);
  void refuse(const SendRequestPtr& request);
  bool invalidate(uint32_t rkey);
  void fail_receive(const SendRequestPtr& request, const ReceiveSlotPtr& slot, WcStatus status);
  std::byte* exposed_memory(uint32_t rkey, uint64_t address, uint64_t length_bytes, Access right);

  Fabric& fabric_;
  Host* host_;
  SimCompletionQueue& cq_;
  std::string address_;
  QueuePairLimits limits_;
  QueuePairState state_ = QueuePairState::kInit;
  Status error_;

  Host* peer_host_ = nullptr;
  uint32_t peer_number_ = 0;
  std::shared_ptr<Channel> out_;
  std::vector<std::byte> offered_private_data_;
  std::vector<std::byte> peer_private_data_;

  // A request is in held_ from post to poll, in pending_ until done in order, in waiting_ until it may set off.
  std::deque<SendRequestPtr> held_sends_;
  std::deque<SendRequestPtr> pending_sends_;
  std::deque<SendRequestPtr> waiting_sends_;
  std::deque<ReceiveSlotPtr> held_receives_;
  std::deque<ReceiveSlotPtr> open_receives_;
  SimSharedReceiveQueue* shared_receives_;   // or null: then open_receives_
  std::map<uint64_t, Sge> polled_receives_;  // by wr_id: those that may be posted again
  std::vector<std::byte> reserved_;          // the message that is being written
  bool holds_ = false;                       // a message waits for the next one
  uint64_t last_sequence_ = 0;
  uint32_t reads_in_flight_count_ = 0;
  bool launch_stopped_ = false;  // a request failed: the error state follows in its turn
  TimeNs last_send_visible_ = 0;
  TimeNs last_receive_visible_ = 0;

  struct Exposed {
    Piece piece{};
    uint32_t access = 0;
    bool revoking = false;  // still open
    uint64_t checksum = 0;  // of the memory when that began
  };

  ExposureTable exposures_;
  std::map<uint32_t, Exposed> exposed_;  // by rkey
  std::set<uint32_t> invalidated_;       // rkeys that messages of the peer's have closed
  std::set<uint32_t> adopted_;           // by lkey
  bool refused_ = false;                 // refused a request of the peer: whatever follows it is void
};

}  // namespace rrpc::provider::sim
