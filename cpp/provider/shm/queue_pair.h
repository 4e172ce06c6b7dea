// One connection between two processes of a host. queue_pair.cc: requests and the end; queue_pair_setup.cc: the
// handshake and the socket's messages; queue_pair_transfer.cc: how bytes move.
#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "provider/shm/address.h"
#include "provider/shm/borrowed.h"
#include "provider/shm/completion_queue.h"
#include "provider/shm/control_segment.h"
#include "provider/shm/peer_bits.h"
#include "provider/shm/peer_process.h"
#include "provider/shm/receive_ring.h"
#include "provider/shm/remote_memory.h"
#include "provider/shm/shared_exposures.h"
#include "provider/shm/slab.h"
#include "provider/shm/socket_channel.h"

namespace rrpc::provider::shm {

// What all connections of a device share.
struct DeviceState {
  std::shared_ptr<SlabRegistry> registry = std::make_shared<SlabRegistry>();
  SlabCache slab_cache;
};

class ShmQueuePair : public QueuePair {
 public:
  struct Role {
    bool server = false;
    bool any_user = false;                           // of a server: other users are let in
    std::shared_ptr<PeerBits> ready_bits = nullptr;  // of a server
  };

  static Result<std::unique_ptr<QueuePair>> create(std::shared_ptr<DeviceState> device, ShmCompletionQueue& cq,
                                                   UniqueFd socket, const QueuePairConfig& config, Role role);
  ~ShmQueuePair() override;

  QueuePairState state() const override { return state_; }
  const Status& error() const override { return error_; }
  const QueuePairLimits& limits() const override { return limits_; }
  Status start(Bytes private_data) override;
  Bytes peer_private_data() const override {
    return state_ == QueuePairState::kConnected ? peer_private_data_ : Bytes();
  }
  std::string peer_description() const override;
  std::string local_description() const override;
  const PeerIdentity& peer_identity() const override { return identity_; }
  std::string_view bulk_method() const override { return peer_reads_us_ ? "process_vm_readv" : "staged"; }
  Status post_receive(const ReceiveRequest& request) override;
  bool post_again(uint64_t wr_id) override {
    return state_ == QueuePairState::kConnected && !inherited() && receives_.post_again(wr_id);
  }
  std::byte* reserve_message(uint32_t length_bytes) override;
  bool commit_message(bool more, uint64_t wr_id) override;
  Status post_send(std::span<const WorkRequest> requests) override;
  Result<uint32_t> expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override;
  bool lends() const override { return !peer_process_->other_user(); }
  std::unique_ptr<Loan> end_lending(uint32_t rkey) override;
  Result<std::unique_ptr<BorrowedRange>> borrow(uint32_t rkey, uint64_t remote_address, uint64_t length_bytes) override;
  bool reaches_pool() const override { return !peer_process_->other_user(); }
  bool revoke(uint32_t rkey) override { return inherited() || exposures_.close(rkey); }
  bool revoking(uint32_t rkey) const override {
    return !inherited() && exposures_.writing(rkey) && !channel_.peer_gone();
  }
  void disconnect(const std::string& reason) override { fail(unavailable("disconnected: " + reason), reason); }

  // For the completion queue.
  size_t poll(std::span<Completion> out, size_t& work_bytes) {
    if (state_ == QueuePairState::kConnected) [[likely]] {
      if (pending_.empty() && ready_.empty() && !channel_.backlogged() && !shared_.outdated()) [[likely]]
        return take_landed(out);
    } else if (ready_.empty() && !channel_.backlogged()) {
      return 0;
    }
    return poll_busy(out, work_bytes);
  }
  NextMessage next_message() const {
    const bool calm = state_ == QueuePairState::kConnected && pending_.empty() && ready_.empty() && !more_to_read_ &&
                      !channel_.backlogged();
    return calm ? next_message_when_calm() : NextMessage();
  }
  // From start() until the end: its socket is to be read.
  bool watched() const { return state_ == QueuePairState::kConnecting || state_ == QueuePairState::kConnected; }
  void on_socket_readable();
  // False while there is nothing to arm yet.
  bool arm(WokenBy woken_by);
  void disarm();
  // Something to do at the next poll, without an event.
  bool has_local_work() const {
    return (!pending_.empty() && !channel_.backlogged()) || !ready_.empty() || more_to_read_;
  }
  bool backlogged() const { return channel_.backlogged(); }
  int socket() const { return channel_.fd(); }
  void forget_completion_queue() { cq_ = nullptr; }

 private:
  struct SendRequest {
    uint64_t wr_id;
    Opcode opcode;
    bool signalled;
    bool inline_data;
    bool solicited;
    uint32_t rkey;
    uint64_t remote_address;
    uint64_t left_bytes;
    SgeCursor cursor;
    std::vector<std::byte> inline_bytes;
  };
  // What became of a request: its status and, if that is a failure, what the connection dies of.
  struct Outcome {
    WcStatus status = WcStatus::kSuccess;
    Status why = {};
    bool later = false;  // nothing was done: the peer's notice of the file is still to be read
  };

  ShmQueuePair(std::shared_ptr<DeviceState> device, ShmCompletionQueue& cq, UniqueFd socket, ControlSegment own,
               const QueuePairConfig& config, Role role, PeerProcess peer);

  // This process is a fork of the one that made the connection.
  bool inherited() const { return fork_generation() != fork_generation_; }
  Status usable() const { return state_ == QueuePairState::kError || inherited() ? why_unusable() : Status(); }
  [[gnu::cold]] Status why_unusable() const;

  // Requests and the end.
  [[gnu::cold]] Status post_receive_otherwise(const ReceiveRequest& request);
  const char* what_is_wrong(const WorkRequest& request, uint64_t length_bytes) const;
  void post_one(const WorkRequest& request);
  void queue_request(const WorkRequest& request);
  void finish(uint64_t wr_id, Opcode opcode, bool signalled, Outcome outcome);
  void complete_send(uint64_t wr_id, Opcode opcode, WcStatus status);
  NextMessage next_message_when_calm() const;
  // Given to the peer, or null.
  ProcessBits* given_bits() const { return ready_bits_ ? ready_bits_->bits() : nullptr; }
  size_t poll_busy(std::span<Completion> out, size_t& work_bytes);
  size_t take_ready(std::span<Completion> out);
  size_t take_landed(std::span<Completion> out) {
    size_t used = 0;
    while (used < out.size() && receives_.landed()) {
      Completion& completion = out[used++];
      receives_.take_landed(completion);
      completion.qp_number = number();
      if (completion.status != WcStatus::kSuccess) [[unlikely]]
        return fail_of_length(completion.length_bytes), used;
    }
    if (armed_ != kByNothing && used > 0) [[unlikely]]
      disarm();
    return used;
  }
  [[gnu::cold]] void fail_of_length(uint32_t length_bytes);
  void fail(Status why, const std::string& goodbye);
  void fail(Status why);
  void flush_everything();

  // The handshake and the socket's messages.
  Status send_setup(Bytes private_data);
  Status read_socket();
  Status on_message(Message& message);
  Status on_setup(Message& message);
  Status give_ready_bits(const SetupNotice& setup);
  Status take_ready_bits(Message& message);
  Status check_peer_user(const SetupNotice& setup) const;
  void connect_when_ready();
  Status share(const MemoryRegion& region);
  Status check_lending(bool mapped, uint32_t access);

  // How bytes move.
  void run_pending(size_t& work_bytes);
  Outcome deliver(std::span<const Sge> sges, bool inline_data, bool solicited);
  void hand_over(bool solicited);
  std::byte* place_in_entry(ReceiveEntry& entry, uint32_t length_bytes) const;
  [[gnu::noinline]] std::byte* reserve_slot(ReceiveEntry& entry, uint32_t length_bytes) const;
  bool claim_receive(ReceiveEntry& entry, uint32_t length_bytes) const;
  std::byte* landing_place(const ReceiveEntry& entry, uint32_t length_bytes) const;
  Outcome look_for_landing_place(const ReceiveEntry& entry, uint32_t length_bytes, std::byte*& place);
  Outcome not_ready();
  Outcome refused();
  bool transfer_some(SendRequest& request, size_t& work_bytes, Outcome& outcome);
  Outcome transfer_chunk(SendRequest& request, uint64_t count);
  Outcome checked_chunk(SendRequest& request, uint64_t count, Access wanted);
  void tell_poller(bool solicited);

  std::shared_ptr<DeviceState> device_;
  ShmCompletionQueue* cq_;
  QueuePairState state_ = QueuePairState::kInit;
  WokenBy armed_ = kByNothing;
  bool peer_setup_seen_ = false;
  bool peer_ready_seen_ = false;
  bool more_to_read_ = false;  // the last look at the socket ended before its messages did
  bool peer_reads_us_ = false;
  bool we_read_peer_ = false;
  const uint32_t fork_generation_ = fork_generation();
  const bool vm_forbidden_;
  const Role role_;
  ControlSegment own_;
  ControlSegment peer_;
  SocketChannel channel_;
  std::optional<PeerBits::Claim> ready_bits_;  // that the peer raises
  std::shared_ptr<Slab> peers_bits_;           // that we raise, or null
  uint32_t peers_bit_ = 0;
  ReceiveRing receives_;
  std::deque<SendRequest> pending_;
  bool long_work_ = false;  // much waited since it was empty
  std::vector<Completion> ready_;
  size_t ready_sends_count_ = 0;
  uint32_t send_sequence_ = 0;
  SharedExposures exposures_;
  PeerSlabs slabs_;
  SharedWithPeer shared_;
  RemoteMemory remote_;
  std::vector<const ShmRegion*> regions_before_start_;
  QueuePairLimits limits_;
  const PeerIdentity identity_;
  std::shared_ptr<PeerProcess> peer_process_;  // shared with the loans, which outlive the queue pair
  Status error_;
  std::array<std::byte, kNonceBytes> nonce_{};
  std::array<std::byte, kPrivateDataBytesMax> peer_private_bytes_{};
  Bytes peer_private_data_;
};

}  // namespace rrpc::provider::shm
