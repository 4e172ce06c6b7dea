#include "provider/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "provider/verbs/completion_queue.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/posting.h"
#include "provider/verbs/region.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {

// rdma_cm leaves the wait before a repeated send at its longest, 655 ms. This is 0.64 ms.
static constexpr uint8_t kMinRnrTimer = 12;
static constexpr uint32_t kUnsignalledMax = 64;  // the device tells at least so often what is done
// An argument is its caller's again when the call returns: a window that the reply hasn't closed is waited for until
// then, unless the adapter is slower than this. Not to wait would leave it readable by the peer, and exported by its
// owner, after every such call.
static constexpr TimeNs kRevokePatience = 50 * kMicrosecond;
static constexpr TimeNs kExposePatience = 20 * kMillisecond;  // while binds and invalidations wait for their turn

// A server's is known before it accepts. Of a connection that ended before it was one, nothing is told.
Bytes VerbsQueuePair::peer_private_data() const {
  const bool telling = was_connected_ || state_ != QueuePairState::kError;
  return telling ? connector_->peer_private_data() : Bytes();
}

Status VerbsQueuePair::start(Bytes private_data) {
  if (state_ == QueuePairState::kError) return error_;
  if (state_ != QueuePairState::kInit) return failed_precondition("the queue pair was started before");
  if (private_data.size() > kPrivateDataBytesMax) {
    return invalid_argument("private data of " + std::to_string(private_data.size()) + " bytes is over the limit of " +
                            std::to_string(kPrivateDataBytesMax));
  }
  state_ = QueuePairState::kConnecting;
  if (Status status = connector_->start(private_data, limits_.read_depth); !status.ok()) {
    die(status);
    return error_;
  }
  follow_connector();
  return error_;
}

void VerbsQueuePair::follow_connector() {
  if (handle_ == nullptr || ending_ == Ending::kFlushing || ending_ == Ending::kFinished) return;
  switch (connector_->phase()) {
    case Connector::Phase::kInit:
    case Connector::Phase::kConnecting:
      return;
    case Connector::Phase::kConnected:
      if (state_ == QueuePairState::kConnecting) establish();
      return;
    case Connector::Phase::kEnded:
      return die(connector_->error().ok() ? unavailable("the connection ended") : connector_->error());
  }
}

void VerbsQueuePair::establish() {
  limits_.read_depth = std::min(limits_.read_depth, connector_->read_depth());
  if (!adapter_.iwarp()) {
    ibv_qp_attr attributes{};
    attributes.min_rnr_timer = kMinRnrTimer;
    (void)ibv_modify_qp(handle_, &attributes, IBV_QP_MIN_RNR_TIMER);  // only a matter of speed
  }
  was_connected_ = true;
  state_ = QueuePairState::kConnected;
}

Status VerbsQueuePair::check_request(const WorkRequest& request) const {
  if (request.opcode == Opcode::kReceive) return invalid_argument("a receive posted to the send queue");
  const bool read = request.opcode == Opcode::kRead;
  const uint32_t sge_count_max = read ? limits_.read_sge_count_max : limits_.sge_count_max;
  if (request.sges.size() > sge_count_max) {
    return invalid_argument("a request of " + std::to_string(request.sges.size()) + " scatter/gather elements (limit " +
                            std::to_string(sge_count_max) + ")");
  }
  uint64_t length_bytes = 0;
  for (const Sge& sge : request.sges) length_bytes += sge.length_bytes;
  if (length_bytes > limits_.message_bytes_max) {
    return invalid_argument("a message of " + std::to_string(length_bytes) + " bytes (limit " +
                            std::to_string(limits_.message_bytes_max) + ")");
  }
  if (request.inline_data && (request.opcode != Opcode::kSend || length_bytes > limits_.inline_bytes_max)) {
    return invalid_argument("inline data is for sends of up to " + std::to_string(limits_.inline_bytes_max) + " bytes");
  }
  if (request.invalidate_rkey != 0 && (request.opcode != Opcode::kSend || !limits_.invalidates)) {
    return invalid_argument("only a send may invalidate a key, and only where memory windows keep exposures");
  }
  if (read && limits_.read_depth == 0) {
    return failed_precondition("a READ on a connection that has a read depth of 0");
  }
  return {};
}

// A full queue of which the device tells nothing could never be emptied.
bool VerbsQueuePair::signal_next(bool wanted) {
  const bool signalled = wanted || ++unsignalled_run_ >= std::min(kUnsignalledMax, (limits_.send_depth + 3) / 4);
  if (signalled) unsignalled_run_ = 0;
  return signalled;
}

// Memory outside its region is for the device to find, in its turn: after what was posted before.
Status VerbsQueuePair::append_sge(const Sge& sge, bool inline_data, bool& own_error) {
  uint32_t lkey = 0;
  if (!inline_data) {
    own_error = own_error || sge.region == nullptr || !sge.region->contains(sge.address, sge.length_bytes);
    if (sge.region != nullptr) {
      RRPC_ASSIGN_OR_RETURN(ibv_mr * registration,
                            static_cast<const VerbsRegion*>(sge.region)->registration_in(domain_));
      lkey = registration->lkey;
    }
  }
  chain_sges_.push_back({reinterpret_cast<uint64_t>(sge.address), sge.length_bytes, lkey});
  return {};
}

// siw ends the connection over a READ of no bytes; a WRITE of none does as little.
static void use_no_elements(ibv_send_wr& request, std::vector<ibv_sge>& sges) {
  sges.resize(sges.size() - static_cast<size_t>(std::exchange(request.num_sge, 0)));
  if (request.opcode == IBV_WR_RDMA_READ) request.opcode = IBV_WR_RDMA_WRITE;
}

static ibv_wr_opcode wr_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead:
      return IBV_WR_RDMA_READ;
    case Opcode::kWrite:
      return IBV_WR_RDMA_WRITE;
    default:
      return IBV_WR_SEND;
  }
}

Status VerbsQueuePair::append_request(const WorkRequest& request) {
  SendEntry entry{.wr_id = request.wr_id, .opcode = request.opcode, .wanted = request.signalled};
  for (const Sge& sge : request.sges) {
    RRPC_RETURN_IF_ERROR(append_sge(sge, request.inline_data, entry.own_error));
    entry.length_bytes += sge.length_bytes;
  }
  ibv_send_wr& posted = chain_.emplace_back();
  posted = {};
  posted.num_sge = static_cast<int>(request.sges.size());
  posted.opcode = wr_opcode(request.opcode);
  posted.wr.rdma.remote_addr = request.remote_address;
  posted.wr.rdma.rkey = request.rkey;
  if (request.invalidate_rkey != 0) {
    posted.opcode = IBV_WR_SEND_WITH_INV;
    posted.invalidate_rkey = request.invalidate_rkey;
  }
  if (adapter_.iwarp() && entry.length_bytes == 0) use_no_elements(posted, chain_sges_);
  // Of a READ over iWARP nothing but its own completion tells.
  entry.signalled = signal_next(request.signalled || (adapter_.iwarp() && request.opcode == Opcode::kRead));
  if (entry.signalled) posted.send_flags |= IBV_SEND_SIGNALED;
  if (request.inline_data) posted.send_flags |= IBV_SEND_INLINE;
  posted.wr_id = send_id(sends_.push(entry));
  return {};
}

Status VerbsQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (state_ == QueuePairState::kError) return error_;
  if (state_ != QueuePairState::kConnected) return failed_precondition("the queue pair isn't connected");
  if (requests.size() > limits_.send_depth - sends_.user_count()) {
    return resource_exhausted("the send queue is full (" + std::to_string(limits_.send_depth) + " requests)");
  }
  if (requests.empty()) return {};
  if (asking_why()) return post_flushed(requests);
  const size_t held_count = chain_.size();
  RRPC_RETURN_IF_ERROR(append(requests));
  if (requests.back().more && chain_.size() < kHeldMax) return keep_inline_bytes(held_count), Status();
  return post_chain(held_count);
}

// All of them or none.
Status VerbsQueuePair::append(std::span<const WorkRequest> requests) {
  size_t sge_count = chain_sges_.size();
  for (const WorkRequest& request : requests) {
    RRPC_RETURN_IF_ERROR(check_request(request));
    sge_count += request.sges.size();
  }
  if (requests.back().more) make_held_places();
  const size_t request_count = chain_.size();
  const size_t sges_before = chain_sges_.size();
  chain_.reserve(request_count + requests.size());
  chain_sges_.reserve(sge_count);
  const uint64_t first = sends_.end();
  for (const WorkRequest& request : requests) {
    if (Status status = append_request(request); !status.ok()) {
      sends_.drop_newest(first);
      chain_.resize(request_count);
      chain_sges_.resize(sges_before);
      return status;
    }
  }
  return {};
}

// Of the requests from that one on, which wait: their callers' memory is theirs again.
void VerbsQueuePair::keep_inline_bytes(size_t first_request) {
  size_t element = 0;
  for (size_t i = 0; i < first_request; ++i) element += static_cast<size_t>(chain_[i].num_sge);
  for (size_t i = first_request; i < chain_.size(); ++i) {
    std::byte* to = held_place(i);
    for (const size_t end = element + static_cast<size_t>(chain_[i].num_sge); element < end; ++element) {
      if ((chain_[i].send_flags & IBV_SEND_INLINE) == 0) continue;
      ibv_sge& sge = chain_sges_[element];
      // NOLINTNEXTLINE(performance-no-int-to-ptr): as the device's interface has it
      std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
      sge.addr = reinterpret_cast<uint64_t>(to);
      to += sge.length;
    }
  }
}

void VerbsQueuePair::ring() {
  give_receives();
  if (chain_.empty()) return;
  if (const Status status = post_chain(chain_.size()); !status.ok()) die(status);
}

// The device takes none any more: they are told with those that it flushes.
Status VerbsQueuePair::post_flushed(std::span<const WorkRequest> requests) {
  for (const WorkRequest& request : requests) {
    sends_.fail(sends_.push({.wr_id = request.wr_id, .opcode = request.opcode, .wanted = request.signalled}));
  }
  return {};
}

// After an error: of a connection that has just been lost Soft-iWARP's library says that it couldn't wake the kernel,
// and names no request. All are in the queue, which the kernel flushes: they are outstanding, and their numbers used.
bool VerbsQueuePair::taken_all_the_same(const ibv_send_wr* refused) {
  if (refused != nullptr || !adapter_.soft_iwarp()) return false;
  ask_why(unavailable("the connection was lost"));
  return true;
}

// The first `held_count` of the chain were taken by earlier calls.
Status VerbsQueuePair::post_chain(size_t held_count) {
  give_receives();
  if (chain_.empty()) return {};  // the queue pair has died of that, and flushes them
  // Those that wait are none any more: should the device refuse some, only these are flushed by this end.
  given_.swap(chain_);
  given_sges_.swap(chain_sges_);
  ibv_sge* sges = given_sges_.data();
  for (size_t i = 0; i < given_.size(); ++i) {
    given_[i].sg_list = sges;
    sges += given_[i].num_sge;
    given_[i].next = i + 1 < given_.size() ? &given_[i + 1] : nullptr;
  }
  const Status status = give_requests(given_, held_count > 0);
  given_.clear();
  given_sges_.clear();
  return status;
}

// They are in the ledger. `promised`: somebody was told that one of them is posted.
Status VerbsQueuePair::give_requests(std::span<ibv_send_wr> linked, bool promised) {
  const uint64_t first = sequence_of(linked.front().wr_id);
  ibv_send_wr* refused = nullptr;
  const int error_number = ibv_post_send(handle_, linked.data(), &refused);
  if (error_number == 0) [[likely]]
    return {};
  const size_t taken = refused == nullptr ? 0 : static_cast<size_t>(refused - linked.data());
  if (taken_all_the_same(refused)) return {};
  if (error_number == ENOTCONN && refused != nullptr) {  // Soft-iWARP's word for a queue pair that has just died
    for (uint64_t sequence = first + taken; sequence < sends_.end(); ++sequence) sends_.fail(sequence);
    ask_why(unavailable("the connection was lost"));
    return {};
  }
  Status status = verbs_error(error_number, "posting to the send queue");
  if (taken == 0 && !promised) {
    sends_.drop_newest(first);
    return status;
  }
  // A part of the chain runs, or somebody was told that it does: the rest is flushed with the queue pair.
  for (uint64_t sequence = first + taken; sequence < sends_.end(); ++sequence) sends_.fail(sequence);
  die(status);
  return {};
}

Status VerbsQueuePair::post_internal(ibv_send_wr& request, SendEntry entry, bool signalled) {
  ring();  // the device's order is that of the ledger
  if (internal_room_used_up() && entry.kind != SendEntry::Kind::kMarker) {
    return resource_exhausted("too many exposures are being opened and closed at once");
  }
  entry.signalled = signal_next(signalled);
  if (entry.signalled) request.send_flags |= IBV_SEND_SIGNALED;
  request.wr_id = send_id(sends_.end());
  ibv_send_wr* refused = nullptr;
  const int error_number = ibv_post_send(handle_, &request, &refused);
  if (error_number != 0 && !taken_all_the_same(refused)) {
    return verbs_error(error_number, "posting to the send queue");
  }
  sends_.push(entry);
  return {};
}

Status VerbsQueuePair::post_bind(ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info& bind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw = {.mw = window, .rkey = rkey, .bind_info = bind};
  RRPC_RETURN_IF_ERROR(post_internal(request, {.wr_id = rkey, .kind = SendEntry::Kind::kBind}, tells_exposed_));
  if (tells_exposed_) ++binds_under_way_;
  return {};
}

Status VerbsQueuePair::post_invalidate(uint32_t rkey) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_LOCAL_INV;
  request.invalidate_rkey = rkey;
  return post_internal(request, {.wr_id = rkey, .kind = SendEntry::Kind::kInvalidate}, true);
}

Status VerbsQueuePair::post_barrier(uint32_t rkey) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;  // of no bytes
  return post_internal(request, {.wr_id = rkey, .opcode = Opcode::kWrite, .kind = SendEntry::Kind::kInvalidate}, true);
}

Status VerbsQueuePair::adopt(const MemoryRegion& region) {
  return static_cast<const VerbsRegion&>(region).registration_in(domain_).status();
}

Result<uint32_t> VerbsQueuePair::expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                        uint32_t access) {
  if (state_ == QueuePairState::kError) return error_;
  if (exposure_kind() == ExposureKind::kWindow && state_ != QueuePairState::kConnected) {
    return failed_precondition("the queue pair isn't connected");
  }
  auto rkey = exposures_->open(region, address, length_bytes, access);
  const TimeNs deadline = now_ns() + kExposePatience;
  while (rkey.status().code() == StatusCode::kResourceExhausted && internal_room_used_up() && now_ns() < deadline) {
    (void)stash_completions();
    rkey = exposures_->open(region, address, length_bytes, access);
  }
  return rkey;
}

bool VerbsQueuePair::wait_for_exposures() {
  const TimeNs deadline = binds_under_way_ > 0 ? now_ns() + kExposePatience : 0;
  while (binds_under_way_ > 0 && state_ == QueuePairState::kConnected && now_ns() < deadline) (void)stash_completions();
  return binds_under_way_ == 0;
}

bool VerbsQueuePair::revoke(uint32_t rkey) {
  if (exposures_->close(rkey)) return true;
  const TimeNs deadline = now_ns() + kRevokePatience;
  do {
    (void)stash_completions();
    if (!exposures_->closing(rkey)) return true;
  } while (now_ns() < deadline);
  return false;
}

}  // namespace rrpc::provider::verbs
