#include "provider/shm/queue_pair.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/limits.h"

namespace rrpc::provider::shm {

namespace {

constexpr uint32_t kSgeCountMax = 16;
constexpr uint32_t kMessageBytesMax = 1 << 30;
constexpr TimeNs kWriterPatienceAtTheEnd = 500 * kMicrosecond;

QueuePairLimits limits_for(const QueuePairConfig& config) {
  QueuePairLimits limits;
  limits.send_depth = std::max(config.send_depth, 1u);
  limits.receive_depth = std::clamp(config.receive_depth, 1u, kReceiveDepthMax);
  limits.sge_count_max = kSgeCountMax;
  limits.read_sge_count_max = kSgeCountMax;
  limits.read_depth = std::clamp(config.read_depth, 1u, limits.send_depth);
  limits.inline_bytes_max = kSlotBytesMax;  // a send is copied when it is posted anyway
  limits.message_bytes_max = kMessageBytesMax;
  limits.receives_in_shared_memory = true;
  return limits;
}

uint32_t next_number() {
  static std::atomic<uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

[[gnu::cold]] Status queue_full(const char* which, uint32_t depth) {
  return resource_exhausted(std::string(which) + " queue full: depth " + std::to_string(depth));
}

bool vm_forbidden_by_environment() {
  const char* value = std::getenv("RRPC_SHM_NO_VM_READV");
  return value != nullptr && value[0] != '\0' && std::string_view(value) != "0";
}

}  // namespace

Result<std::unique_ptr<QueuePair>> ShmQueuePair::create(std::shared_ptr<DeviceState> device, ShmCompletionQueue& cq,
                                                        UniqueFd socket, const QueuePairConfig& config, Role role) {
  RRPC_ASSIGN_OR_RETURN(PeerProcess peer, PeerProcess::of(socket.get()));
  const uint32_t entries = ControlSegment::ring_entries(limits_for(config).receive_depth);
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping,
                        SharedMapping::create("rrpc-control", ControlSegment::segment_bytes(entries), true));
  std::unique_ptr<ShmQueuePair> made(new ShmQueuePair(std::move(device), cq, std::move(socket),
                                                      ControlSegment(std::move(mapping), entries), config,
                                                      std::move(role), std::move(peer)));
  if (getrandom(made->nonce_.data(), made->nonce_.size(), 0) != static_cast<ssize_t>(made->nonce_.size()))
    return Status::from_errno(errno, "getrandom");
  cq.attach(*made);
  return std::unique_ptr<QueuePair>(std::move(made));
}

ShmQueuePair::ShmQueuePair(std::shared_ptr<DeviceState> device, ShmCompletionQueue& cq, UniqueFd socket,
                           ControlSegment own, const QueuePairConfig& config, Role role, PeerProcess peer)
    : QueuePair(next_number()),
      device_(std::move(device)),
      cq_(&cq),
      vm_forbidden_(vm_forbidden_by_environment()),
      role_(std::move(role)),
      own_(std::move(own)),
      channel_(std::move(socket)),
      receives_(own_, limits_for(config).receive_depth),
      exposures_(own_),
      shared_(device_->registry),
      remote_(peer_, slabs_),
      limits_(limits_for(config)),
      identity_{.process = ProcessIdentity{peer.pid(), peer.uid(), peer.gid()}, .certificate = {}},
      peer_process_(std::make_shared<PeerProcess>(std::move(peer))) {}

// Whoever has let a revocation end before has nothing to wait for here.
ShmQueuePair::~ShmQueuePair() {
  fail(unavailable("destroyed"), "closed");
  const TimeNs give_up = now_ns() + kWriterPatienceAtTheEnd;
  while (!inherited() && exposures_.writing() && !channel_.peer_gone() && now_ns() < give_up) cpu_relax();
  if (cq_ != nullptr) cq_->detach(*this);
}

std::string ShmQueuePair::peer_description() const {
  return "peer pid " + std::to_string(peer_process_->pid()) + " uid " + std::to_string(peer_process_->uid());
}

std::string ShmQueuePair::local_description() const {
  return "peer pid " + std::to_string(getpid()) + " uid " + std::to_string(geteuid());
}

Status ShmQueuePair::why_unusable() const {
  if (inherited()) return failed_precondition("the connection belongs to the process that this one was forked from");
  return error_;
}

Status ShmQueuePair::post_receive(const ReceiveRequest& request) {
  const auto* region = static_cast<const ShmRegion*>(request.sge.region);
  const bool well = state_ != QueuePairState::kError && !inherited() && !receives_.full() && region != nullptr &&
                    region->contains(request.sge.address, request.sge.length_bytes) && region->shared() &&
                    region->range().peers_may_write && shared_.knows(*region);
  if (!well) [[unlikely]]
    return post_receive_otherwise(request);
  receives_.post(request.wr_id, region->slab_id(), region->file_offset(request.sge.address), request.sge.length_bytes);
  return {};
}

// Says what is wrong, or tells the peer of the file first.
Status ShmQueuePair::post_receive_otherwise(const ReceiveRequest& request) {
  RRPC_RETURN_IF_ERROR(usable());
  if (receives_.full()) return queue_full("receive", limits_.receive_depth);
  const auto* region = static_cast<const ShmRegion*>(request.sge.region);
  if (region == nullptr || !region->contains(request.sge.address, request.sge.length_bytes))
    return invalid_argument("a receive outside its memory region");
  if (!region->shared() || !region->range().peers_may_write)
    return failed_precondition("a receive over shm needs shared memory that peers may write");
  RRPC_RETURN_IF_ERROR(share(*region));
  receives_.post(request.wr_id, region->slab_id(), region->file_offset(request.sge.address), request.sge.length_bytes);
  return {};
}

// Returns null for a valid request.
inline const char* ShmQueuePair::what_is_wrong(const WorkRequest& request, uint64_t length_bytes) const {
  const bool is_read = request.opcode == Opcode::kRead;
  if (request.sges.size() > (is_read ? limits_.read_sge_count_max : limits_.sge_count_max))
    return "more scatter/gather elements than the limit";
  if (length_bytes > limits_.message_bytes_max) return "longer than the limit of one message";
  if (!request.inline_data) return nullptr;
  if (request.opcode != Opcode::kSend) return "only a send may be inline";
  return length_bytes > limits_.inline_bytes_max ? "longer than the limit of inline data" : nullptr;
}

Status ShmQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (state_ != QueuePairState::kConnected || inherited()) [[unlikely]] {
    RRPC_RETURN_IF_ERROR(usable());
    return failed_precondition("the queue pair is not connected yet");
  }
  for (const WorkRequest& request : requests) {
    RRPC_CHECK(request.opcode != Opcode::kReceive, "receives are posted by post_receive");
    if (const char* wrong = what_is_wrong(request, total_bytes(request.sges)); wrong != nullptr)
      return invalid_argument(wrong);
  }
  if (pending_.size() + ready_sends_count_ + requests.size() > limits_.send_depth)
    return queue_full("send", limits_.send_depth);
  for (const WorkRequest& request : requests) post_one(request);
  return {};
}

inline void ShmQueuePair::post_one(const WorkRequest& request) {
  if (state_ != QueuePairState::kConnected) [[unlikely]] {  // one before it in the list has failed
    complete_send(request.wr_id, request.opcode, WcStatus::kFlushed);
  } else if (request.opcode == Opcode::kSend && pending_.empty() && !channel_.backlogged()) {
    Outcome outcome = deliver(request.sges, request.inline_data, request.solicited);
    if (outcome.later) return queue_request(request);
    finish(request.wr_id, request.opcode, request.signalled, std::move(outcome));
  } else {
    queue_request(request);
  }
}

void ShmQueuePair::queue_request(const WorkRequest& request) {
  SendRequest queued{
      request.wr_id, request.opcode,         request.signalled,         request.inline_data,     request.solicited,
      request.rkey,  request.remote_address, total_bytes(request.sges), SgeCursor(request.sges), {}};
  if (request.inline_data) {
    queued.inline_bytes.resize(queued.left_bytes);
    gather(request.sges, queued.inline_bytes.data());
    const Sge taken{queued.inline_bytes.data(), static_cast<uint32_t>(queued.left_bytes), nullptr};
    queued.cursor = SgeCursor({&taken, 1});
  }
  pending_.push_back(std::move(queued));
}

void ShmQueuePair::complete_send(uint64_t wr_id, Opcode opcode, WcStatus status) {
  ready_.push_back({wr_id, opcode, status, 0, number()});
  ++ready_sends_count_;
}

void ShmQueuePair::finish(uint64_t wr_id, Opcode opcode, bool signalled, Outcome outcome) {
  const bool failed = outcome.status != WcStatus::kSuccess;
  if (signalled || failed) complete_send(wr_id, opcode, outcome.status);
  if (failed) fail(std::move(outcome.why));
}

// The peer says that it raises the bit before it raises it for the first time.
NextMessage ShmQueuePair::next_message_when_calm() const {
  NextMessage next = receives_.next_message();
  if (given_bits() == nullptr) return next;
  if (peer_.header().raises_bits.load(std::memory_order_seq_cst) == 0) return next;
  next.bits = given_bits();
  next.bit = ready_bits_->bit();
  return next;
}

size_t ShmQueuePair::poll_busy(std::span<Completion> out, size_t& work_bytes) {
  if (channel_.backlogged()) {
    if (Status status = channel_.flush(); !status.ok()) fail(std::move(status));
  }
  if (state_ == QueuePairState::kConnected && shared_.outdated()) {
    if (Status status = shared_.drop_retired(channel_); !status.ok()) fail(std::move(status));
  }
  if (!pending_.empty()) run_pending(work_bytes);
  size_t used = take_ready(out);
  if (state_ == QueuePairState::kConnected) used += take_landed(out.subspan(used));
  return used;
}

size_t ShmQueuePair::take_ready(std::span<Completion> out) {
  const size_t used = std::min(out.size(), ready_.size());
  if (used == 0) return 0;
  const auto end = ready_.begin() + static_cast<ptrdiff_t>(used);
  std::copy(ready_.begin(), end, out.begin());
  ready_.erase(ready_.begin(), end);
  ready_sends_count_ -= static_cast<size_t>(
      std::ranges::count_if(out.first(used), [](const Completion& taken) { return taken.opcode != Opcode::kReceive; }));
  return used;
}

void ShmQueuePair::fail_of_length(uint32_t length_bytes) {
  fail(Status::protocol_error("a message of " + std::to_string(length_bytes) + " bytes came for a shorter receive"));
}

bool ShmQueuePair::arm(WokenBy woken_by) {
  if (state_ != QueuePairState::kConnected) return state_ == QueuePairState::kError;
  armed_ = woken_by;
  own_.header().armed.store(woken_by, std::memory_order_seq_cst);
  return true;
}

void ShmQueuePair::disarm() {
  if (armed_ == kByNothing) return;
  armed_ = kByNothing;
  own_.header().armed.store(kByNothing, std::memory_order_relaxed);
  cq_->disarmed(*this);
}

void ShmQueuePair::fail(Status why) {
  const std::string goodbye = why.message();
  fail(std::move(why), goodbye);
}

// First the peer is told, then the memory is taken back: what lands in between is still delivered.
void ShmQueuePair::fail(Status why, const std::string& goodbye) {
  if (state_ == QueuePairState::kError) return;
  if (inherited()) {  // the shared memory is the parent's to take back
    error_ = why_unusable();
    state_ = QueuePairState::kError;
    return channel_.close();
  }
  const bool started = state_ != QueuePairState::kInit;
  if (started) (void)channel_.send_now(encode_goodbye(Status(why.code(), goodbye), false));
  if (state_ == QueuePairState::kConnecting && cq_ != nullptr) cq_->set_connecting(false);
  state_ = QueuePairState::kError;
  error_ = std::move(why);
  more_to_read_ = false;
  exposures_.close_all();
  receives_.withdraw();
  flush_everything();
  if (!exposures_.writing()) channel_.close();  // else it tells when the writer is gone
  slabs_.clear();
}

void ShmQueuePair::flush_everything() {
  for (const SendRequest& request : pending_) complete_send(request.wr_id, request.opcode, WcStatus::kFlushed);
  pending_.clear();
  bool intact = true;
  while (!receives_.empty()) {
    Completion completion;
    if (intact && receives_.landed())
      receives_.take_landed(completion);
    else
      completion = receives_.take_flushed();
    if (completion.status != WcStatus::kSuccess) intact = false;
    completion.qp_number = number();
    ready_.push_back(completion);
  }
}

}  // namespace rrpc::provider::shm
