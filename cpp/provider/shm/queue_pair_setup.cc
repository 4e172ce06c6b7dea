#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "provider/shm/queue_pair.h"

namespace rrpc::provider::shm {

namespace {
// What a peer says may not hold a poller for long. A file is mapped or unmapped in some ten microseconds.
constexpr int kMessagesPerReadMax = 1024;
constexpr int kFilesPerReadMax = 16;

bool about_a_file(MessageType type) { return type == MessageType::kSlab || type == MessageType::kDropSlab; }
}  // namespace

Status ShmQueuePair::start(Bytes private_data) {
  RRPC_RETURN_IF_ERROR(usable());
  if (state_ != QueuePairState::kInit) return failed_precondition("the queue pair was started before");
  if (private_data.size() > kPrivateDataBytesMax)
    return invalid_argument("more than " + std::to_string(kPrivateDataBytesMax) + " bytes of private data");
  if (cq_ == nullptr) return failed_precondition("the completion queue is gone");
  state_ = QueuePairState::kConnecting;
  cq_->set_connecting(true);
  Status status = send_setup(private_data);
  if (!status.ok()) fail(status);
  return status;
}

Status ShmQueuePair::send_setup(Bytes private_data) {
  SetupNotice setup;
  setup.ring_entries = own_.ring_entries();
  setup.exposure_count = kExposureCount;
  setup.segment_bytes = ControlSegment::segment_bytes(own_.ring_entries());
  setup.flags = (vm_forbidden_ ? SetupNotice::kNoVmAccess : 0) | (role_.any_user ? SetupNotice::kAnyUser : 0) |
                (role_.server ? 0 : SetupNotice::kReadyBits);
  setup.pid = static_cast<uint32_t>(getpid());
  setup.nonce_address = reinterpret_cast<uint64_t>(nonce_.data());
  setup.nonce = nonce_;
  setup.private_bytes = static_cast<uint32_t>(private_data.size());
  std::ranges::copy(private_data, setup.private_data.begin());
  RRPC_RETURN_IF_ERROR(channel_.send(encode_setup(setup), own_.fd()));
  own_.close_fd();
  for (const ShmRegion* region : regions_before_start_) RRPC_RETURN_IF_ERROR(share(*region));
  regions_before_start_ = {};
  return {};
}

// The peer learns of a file before anything refers to it: the socket keeps the order, requests wait while a notice does
// (see run_pending()), and the peer reads the socket when it meets a number that it doesn't know.
Status ShmQueuePair::share(const MemoryRegion& memory_region) {
  const auto& region = static_cast<const ShmRegion&>(memory_region);
  if (shared_.knows(region)) return {};
  if (state_ != QueuePairState::kInit)
    return shared_.share(region, channel_, [this](uint32_t slab_id) { return exposures_.any_open_in(slab_id); });
  if (std::ranges::find(regions_before_start_, &region) == regions_before_start_.end())
    regions_before_start_.push_back(&region);
  return {};
}

void ShmQueuePair::on_socket_readable() {
  if (Status status = read_socket(); !status.ok()) fail(std::move(status));
}

Status ShmQueuePair::read_socket() {
  int messages = 0, files = 0;
  do {
    more_to_read_ = false;
    RRPC_ASSIGN_OR_RETURN(std::optional<Message> message, channel_.next());
    if (!message) return {};
    more_to_read_ = true;
    files += about_a_file(message->type);
    RRPC_RETURN_IF_ERROR(on_message(*message));
  } while (++messages < kMessagesPerReadMax && files < kFilesPerReadMax);
  return {};
}

Status ShmQueuePair::on_message(Message& message) {
  const bool set_up_first = message.type != MessageType::kSetup && message.type != MessageType::kGoodbye;
  if (set_up_first && !peer_setup_seen_) return Status::protocol_error("the peer's first message is not SETUP");
  switch (message.type) {
    case MessageType::kSetup:
      return on_setup(message);
    case MessageType::kReady: {
      if (peer_ready_seen_) return Status::protocol_error("the peer says READY twice");
      RRPC_ASSIGN_OR_RETURN(bool can_access, decode_ready(message.payload));
      peer_ready_seen_ = true;
      peer_reads_us_ = can_access && !vm_forbidden_ && !peer_process_->other_user();
      connect_when_ready();
      return {};
    }
    case MessageType::kSlab: {
      RRPC_ASSIGN_OR_RETURN(SlabNotice notice, decode_slab(message.payload));
      return slabs_.add(device_->slab_cache, notice, std::move(message.fd));
    }
    case MessageType::kDropSlab: {
      RRPC_ASSIGN_OR_RETURN(uint32_t id, decode_drop_slab(message.payload));
      slabs_.drop(id);
      return {};
    }
    case MessageType::kReadyBits:
      return take_ready_bits(message);
    case MessageType::kDoorbell:
      if (ProcessBits* const bits = given_bits()) bits->bell_rang();
      // A bell that was slow to come may have taken an arming made since.
      if (armed_ != kByNothing) own_.header().armed.store(armed_, std::memory_order_seq_cst);
      return {};
    case MessageType::kGoodbye: {
      RRPC_ASSIGN_OR_RETURN(Goodbye goodbye, decode_goodbye(message.payload));
      const bool orderly = goodbye.code == StatusCode::kUnavailable;
      return {goodbye.code, (orderly ? "peer closed: " : "the peer ended the connection: ") + goodbye.reason};
    }
  }
  return Status::protocol_error("unknown message type on the shm socket");
}

Status ShmQueuePair::check_peer_user(const SetupNotice& setup) const {
  const bool trusted =
      !peer_process_->other_user() || role_.any_user || (!role_.server && (setup.flags & SetupNotice::kAnyUser) != 0);
  if (trusted) return {};
  return permission_denied("the peer runs as uid " + std::to_string(peer_process_->uid()) + ", this process as uid " +
                           std::to_string(geteuid()));
}

Status ShmQueuePair::on_setup(Message& message) {
  if (peer_setup_seen_) return Status::protocol_error("the peer sends SETUP twice");
  RRPC_ASSIGN_OR_RETURN(SetupNotice setup, decode_setup(message.payload));
  RRPC_RETURN_IF_ERROR(check_peer_user(setup));
  RRPC_RETURN_IF_ERROR(check_plain_shared_memory(message.fd.get()));
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::adopt(std::move(message.fd), setup.segment_bytes, true));
  peer_ = ControlSegment(std::move(mapping), setup.ring_entries);
  peer_.close_fd();
  peer_setup_seen_ = true;
  peer_private_bytes_ = setup.private_data;
  peer_private_data_ = Bytes(peer_private_bytes_).first(setup.private_bytes);
  const bool forbidden = vm_forbidden_ || peer_process_->other_user() || (setup.flags & SetupNotice::kNoVmAccess) != 0;
  we_read_peer_ = !forbidden && peer_process_->hold(channel_.fd()) &&
                  probe_memory(peer_process_->pid(), setup.nonce_address, setup.nonce) && !peer_process_->ended();
  if (we_read_peer_)
    peer_process_ = PeerProcess::share(std::move(peer_process_));
  else
    peer_process_->let_go();
  RRPC_RETURN_IF_ERROR(channel_.send(encode_ready(we_read_peer_)));
  RRPC_RETURN_IF_ERROR(give_ready_bits(setup));
  connect_when_ready();
  return {};
}

Status ShmQueuePair::give_ready_bits(const SetupNotice& setup) {
  if (!role_.ready_bits || (setup.flags & SetupNotice::kReadyBits) == 0) return {};
  ready_bits_.emplace(role_.ready_bits, *peer_process_);
  if (given_bits() == nullptr) return {};
  return channel_.send(encode_ready_bits(ready_bits_->bit()), given_bits()->fd());
}

Status ShmQueuePair::take_ready_bits(Message& message) {
  if (role_.server || peers_bits_) return Status::protocol_error("the peer sends READY_BITS out of place");
  RRPC_ASSIGN_OR_RETURN(peers_bit_, decode_ready_bits(message.payload));
  RRPC_ASSIGN_OR_RETURN(peers_bits_, device_->slab_cache.adopt(std::move(message.fd), sizeof(ReadyPage), true));
  own_.header().raises_bits.store(1, std::memory_order_seq_cst);
  tell_poller(true);  // of what has landed already
  return {};
}

void ShmQueuePair::connect_when_ready() {
  if (!peer_setup_seen_ || !peer_ready_seen_) return;
  state_ = QueuePairState::kConnected;
  cq_->set_connecting(false);
  cq_->disarmed(*this);
}

// Without a descriptor of the peer's process nobody could tell when it is over.
Status ShmQueuePair::check_lending(bool mapped, uint32_t access) {
  if (!mapped || access != (kRemoteRead | kLend))
    return failed_precondition("only pool memory that a peer of the same user reads can be lent");
  if (!exposures_.may_lend()) return failed_precondition("the peer keeps as many ranges as can be lent to it");
  if (peer_process_->held()) return {};
  if (!lends() || !peer_process_->hold(channel_.fd()))
    return failed_precondition("the peer's process can't be watched (pidfd_open)");
  peer_process_ = PeerProcess::share(std::move(peer_process_));
  return {};
}

Result<uint32_t> ShmQueuePair::expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                      uint32_t access) {
  RRPC_RETURN_IF_ERROR(usable());
  if (state_ != QueuePairState::kConnected) return failed_precondition("the queue pair is not connected yet");
  if (access == 0 || (access & ~(kRemoteRead | kRemoteWrite | kLend)) != 0 || !region.contains(address, length_bytes))
    return invalid_argument("an exposure outside its memory region, or without rights");
  const auto& memory = static_cast<const ShmRegion&>(region);
  const bool mapped = memory.shared() && ((access & kRemoteWrite) == 0 || memory.range().peers_may_write);
  if (!mapped && !peer_reads_us_)
    return failed_precondition(
        "the peer may not read this process's memory (another user, or ptrace rules); staged through the pool");
  if ((access & kLend) != 0) RRPC_RETURN_IF_ERROR(check_lending(mapped, access));
  if (mapped) RRPC_RETURN_IF_ERROR(share(region));
  return exposures_.open({reinterpret_cast<uint64_t>(address), length_bytes,
                          access | static_cast<uint32_t>(mapped ? kMapped : kOrdinary), memory.slab_id()});
}

}  // namespace rrpc::provider::shm
