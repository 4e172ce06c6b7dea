#include "provider/sim/shared_receive_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace rrpc::provider::sim {

SimSharedReceiveQueue::SimSharedReceiveQueue(Fabric& fabric, Host* host, uint32_t depth)
    : fabric_(fabric), host_(host), depth_(depth), limit_(std::max(1u, depth / 8)) {}

SimSharedReceiveQueue::~SimSharedReceiveQueue() {
  RRPC_CHECK(attached_count_ == 0, "a shared receive queue outlives its queue pairs");
  for (const auto& slot : open_) unclaim(fabric_, slot->piece);
}

Status SimSharedReceiveQueue::post(std::span<const ReceiveRequest> requests) {
  ++calls_of_post_;
  for (const ReceiveRequest& request : requests) RRPC_RETURN_IF_ERROR(post_one(request));
  return {};
}

Status SimSharedReceiveQueue::post_one(const ReceiveRequest& request) {
  if (open_.size() >= depth_) return resource_exhausted("shared receive queue full: depth " + std::to_string(depth_));
  auto slot = std::make_shared<ReceiveSlot>();
  slot->wr_id = request.wr_id;
  slot->local_fault = !claim(fabric_, host_, request.sge, slot->piece);
  slot->checksum = checksum_of(memory_of(fabric_, slot->piece));
  append(std::move(slot));
  return {};
}

void SimSharedReceiveQueue::post_again(const ReceiveSlot& slot) {
  auto again = std::make_shared<ReceiveSlot>(slot);
  again->checksum = checksum_of(memory_of(fabric_, again->piece));
  append(std::move(again));
}

void SimSharedReceiveQueue::append(std::shared_ptr<ReceiveSlot> slot) {
  open_.push_back(std::move(slot));
  limit_armed_ |= open_.size() > limit_;
}

std::shared_ptr<ReceiveSlot> SimSharedReceiveQueue::take() {
  if (open_.empty()) return nullptr;
  std::shared_ptr<ReceiveSlot> slot = std::move(open_.front());
  open_.pop_front();
  if (open_.size() < limit_ && std::exchange(limit_armed_, false)) ++limit_events_;
  return slot;
}

}  // namespace rrpc::provider::sim
