#include "provider/verbs/shared_receive_queue.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "provider/verbs/errors.h"
#include "provider/verbs/posting.h"
#include "provider/verbs/region.h"

namespace rrpc::provider::verbs {

static constexpr uint32_t kLimitPart = 8;
static constexpr size_t kChainMax = 64;

Result<std::unique_ptr<SharedReceiveQueue>> VerbsSharedReceiveQueue::create(Adapter& adapter, uint32_t depth) {
  if (!adapter.has_windows()) {
    return failed_precondition(
        "the adapter " + adapter.name() +
        " has no memory windows: each of its connections has a protection domain of its own, and "
        "these can't share receives");
  }
  const ibv_device_attr& attributes = adapter.attributes();
  if (attributes.max_srq <= 0)
    return failed_precondition("the adapter " + adapter.name() + " has no shared receive queues");
  if (depth == 0 || depth > static_cast<uint32_t>(attributes.max_srq_wr)) {
    return resource_exhausted("a shared receive queue of " + std::to_string(depth) + " receives; " + adapter.name() +
                              " allows 1 to " + std::to_string(attributes.max_srq_wr));
  }
  RRPC_ASSIGN_OR_RETURN(std::shared_ptr<ProtectionDomain> domain, adapter.protection_domain());
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = depth, .max_sge = 1, .srq_limit = 0};
  errno = 0;
  ibv_srq* handle = ibv_create_srq(domain->handle(), &wanted);
  if (handle == nullptr) return verbs_error(errno, "making a shared receive queue");
  std::unique_ptr<VerbsSharedReceiveQueue> made(new VerbsSharedReceiveQueue(adapter, std::move(domain), handle, depth));
  adapter.attach(made.get());
  return std::unique_ptr<SharedReceiveQueue>(std::move(made));
}

VerbsSharedReceiveQueue::VerbsSharedReceiveQueue(Adapter& adapter, std::shared_ptr<ProtectionDomain> domain,
                                                 ibv_srq* handle, uint32_t depth)
    : adapter_(adapter),
      domain_(std::move(domain)),
      handle_(handle),
      limit_(std::max(1u, depth / kLimitPart)),
      slots_(depth) {
  chain_.reserve(kChainMax);
  chain_sges_.reserve(kChainMax);  // the chain points at them
}

VerbsSharedReceiveQueue::~VerbsSharedReceiveQueue() {
  adapter_.detach(this);
  ibv_destroy_srq(handle_);
}

Status VerbsSharedReceiveQueue::post(std::span<const ReceiveRequest> requests) {
  std::lock_guard lock(mutex_);
  for (const ReceiveRequest& request : requests) {
    if (chain_.size() == kChainMax) RRPC_RETURN_IF_ERROR(post_chain());
    if (Status status = append(request); !status.ok()) return (void)post_chain(), status;
  }
  return post_chain();
}

Status VerbsSharedReceiveQueue::append(const ReceiveRequest& request) {
  if (posted_count_ == depth())
    return resource_exhausted("the shared receive queue is full (" + std::to_string(depth()) + " receives)");
  const auto known = slot_of_.find(request.wr_id);
  if (known == slot_of_.end() && slot_of_.size() == depth())
    return invalid_argument("a shared receive queue of " + std::to_string(depth()) + " receives knows as many wr_ids");
  if (known == slot_of_.end()) {
    const auto added = slot_of_.emplace(request.wr_id, static_cast<uint32_t>(slot_of_.size())).first;
    Status status = append_in(added->second, request);
    if (!status.ok()) slot_of_.erase(added);
    return status;
  }
  if (slots_[known->second].posted) return invalid_argument("a shared receive of this wr_id is posted already");
  return append_in(known->second, request);
}

Status VerbsSharedReceiveQueue::append_in(uint32_t slot, const ReceiveRequest& request) {
  const auto* region = static_cast<const VerbsRegion*>(request.sge.region);
  if (region == nullptr || !region->contains(request.sge.address, request.sge.length_bytes)) {
    return invalid_argument("a receive outside its memory region");
  }
  RRPC_ASSIGN_OR_RETURN(const ibv_mr* registration, region->registration_in(domain_));
  chain_sges_.push_back(
      {reinterpret_cast<uint64_t>(request.sge.address), request.sge.length_bytes, registration->lkey});
  chain_.push_back({.wr_id = slot, .next = nullptr, .sg_list = &chain_sges_.back(), .num_sge = 1});
  slots_[slot] = {request, true};
  ++posted_count_;
  return {};
}

Status VerbsSharedReceiveQueue::post_chain() {
  if (chain_.empty()) return {};
  const PostedReceives posted = post_linked(handle_, chain_);
  for (const ibv_recv_wr& refused : std::span(chain_).subspan(posted.count)) {
    slots_[refused.wr_id].posted = false;
    --posted_count_;
  }
  chain_.clear();
  chain_sges_.clear();
  if (posted.count > 0) arm_limit();
  return posted.error_number == 0 ? Status() : verbs_error(posted.error_number, "posting a shared receive");
}

// An event disarms the limit. Armed again while still below it, it would come with every message.
void VerbsSharedReceiveQueue::arm_limit() {
  if (posted_count_ <= limit_ || armed_.exchange(true)) return;
  ibv_srq_attr attributes{};
  attributes.srq_limit = limit_;
  if (ibv_modify_srq(handle_, &attributes, IBV_SRQ_LIMIT) != 0) armed_ = false;
}

uint64_t VerbsSharedReceiveQueue::complete(uint64_t slot) {
  std::lock_guard lock(mutex_);
  Slot& completed = slots_.at(slot);
  completed.posted = false;
  --posted_count_;
  return completed.request.wr_id;
}

void VerbsSharedReceiveQueue::take_back(uint64_t wr_id) {
  std::lock_guard lock(mutex_);
  const auto known = slot_of_.find(wr_id);
  if (known == slot_of_.end() || slots_[known->second].posted) return;
  if (append_in(known->second, ReceiveRequest(slots_[known->second].request)).ok()) (void)post_chain();
}

void VerbsSharedReceiveQueue::on_limit() {
  limit_events_.fetch_add(1, std::memory_order_relaxed);
  armed_ = false;
}

}  // namespace rrpc::provider::verbs
