// Receives, and messages that are written where they are sent from: what each small call needs.
#include <algorithm>
#include <array>
#include <utility>

#include "provider/verbs/errors.h"
#include "provider/verbs/posting.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/region.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {

static constexpr size_t kGivenAtATime = 16;

// --- receives --------------------------------------------------------------------------------------

Result<PostedReceive> VerbsQueuePair::resolve(const ReceiveRequest& request) {
  const auto* region = static_cast<const VerbsRegion*>(request.sge.region);
  if (region == nullptr || !region->contains(request.sge.address, request.sge.length_bytes)) {
    return invalid_argument("a receive outside its memory region");
  }
  if (region->id() != receive_region_id_) {
    RRPC_ASSIGN_OR_RETURN(const ibv_mr* registration, region->registration_in(domain_));
    receive_region_id_ = region->id();
    receive_lkey_ = registration->lkey;
  }
  return PostedReceive{request.wr_id, reinterpret_cast<uint64_t>(request.sge.address), request.sge.length_bytes,
                       receive_lkey_};
}

Status VerbsQueuePair::post_receives(std::span<const ReceiveRequest> requests) {
  if (state_ == QueuePairState::kError) return error_;
  if (shared_receives_ != nullptr) return failed_precondition("this queue pair takes its receives from a shared queue");
  if (requests.size() > receives_.room()) {
    return resource_exhausted("the receive queue is full (" + std::to_string(limits_.receive_depth) + " receives)");
  }
  give_receives();
  const size_t waiting_before = receives_.waiting_count();  // of a queue pair that has died
  Status status;
  for (const ReceiveRequest& request : requests) {
    auto receive = resolve(request);
    if (!receive.ok()) {
      status = receive.status();
      break;
    }
    receives_.push(*receive);
  }
  if (status.ok() && asking_why()) return {};  // they are flushed with the others
  if (!status.ok() || !(status = give_receives_now()).ok()) {
    while (receives_.waiting_count() > waiting_before) receives_.drop_newest();
  }
  return status;
}

Status VerbsQueuePair::give_receives_now() {
  std::array<ibv_recv_wr, kGivenAtATime> requests;
  std::array<ibv_sge, kGivenAtATime> elements;
  while (const size_t count = std::min(receives_.waiting_count(), kGivenAtATime)) {
    for (size_t i = 0; i < count; ++i) {
      const PostedReceive& receive = receives_.waiting(i);
      elements[i] = {receive.address, receive.length_bytes, receive.lkey};
      requests[i] = {.wr_id = receive_id(0), .next = nullptr, .sg_list = &elements[i], .num_sge = 1};
    }
    const PostedReceives posted = post_linked(handle_, std::span(requests).first(count));
    receives_.given(posted.count);
    if (posted.error_number != 0) return verbs_error(posted.error_number, "posting a receive");
  }
  return {};
}

// Some drivers take none for a queue pair that has died: its connector or its watcher knows why.
void VerbsQueuePair::give_receives_or_ask_why() {
  if (const Status status = give_receives_now(); !status.ok()) ask_why(status);
}

// Those that the device didn't get end as those that it had, after them.
void VerbsQueuePair::drop_waiting_receives() {
  for (size_t i = 0; i < receives_.waiting_count(); ++i) {
    stash_.push_back({.wr_id = receives_.waiting(i).wr_id,
                      .opcode = Opcode::kReceive,
                      .status = WcStatus::kFlushed,
                      .length_bytes = 0,
                      .qp_number = number()});
  }
  while (receives_.waiting_count() > 0) receives_.drop_newest();
}

// --- messages --------------------------------------------------------------------------------------

void VerbsQueuePair::make_held_places() {
  if (held_bytes_.empty()) held_bytes_.resize(kHeldMax * limits_.inline_bytes_max);
}

// Where its bytes stay should it wait for another one.
std::byte* VerbsQueuePair::reserve_message(uint32_t length_bytes) {
  const bool fits = length_bytes <= limits_.inline_bytes_max && sends_.user_count() < limits_.send_depth;
  if (!fits || !connected()) return nullptr;
  make_held_places();
  chain_.reserve(kHeldMax);
  chain_sges_.reserve(std::max(kHeldMax, chain_sges_.size() + 1));
  reserved_bytes_ = length_bytes;
  return held_place(chain_.size());
}

bool VerbsQueuePair::commit_message(bool more, uint64_t wr_id) {
  const bool wanted = wr_id != kNoCompletion;
  const bool signalled = signal_next(wanted);
  message_.wr_id = send_id(sends_.push({.wr_id = wr_id,
                                        .kind = SendEntry::Kind::kMessage,
                                        .wanted = wanted,
                                        .signalled = signalled,
                                        .length_bytes = reserved_bytes_}));
  message_.send_flags = IBV_SEND_INLINE | (signalled ? unsigned{IBV_SEND_SIGNALED} : 0u);
  message_sge_ = {reinterpret_cast<uint64_t>(held_place(chain_.size())), reserved_bytes_, 0};
  if (more || !chain_.empty()) {
    chain_.push_back(message_);
    chain_sges_.push_back(message_sge_);
    if (more && chain_.size() < kHeldMax) return true;
    ring();
    return false;
  }
  give_receives();
  if (!connected()) [[unlikely]]
    sends_.fail(sequence_of(message_.wr_id));
  else
    (void)give_requests({&message_, 1}, true);
  return false;
}

}  // namespace rrpc::provider::verbs
