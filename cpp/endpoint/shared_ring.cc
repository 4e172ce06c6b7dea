#include "endpoint/shared_ring.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/limits.h"
#include "endpoint/counters.h"

namespace rrpc::endpoint {

// No connection gets more than this part of what is left.
static constexpr uint32_t kShareOfRest = 4;

ReceiveShare::~ReceiveShare() {
  if (ring_ != nullptr) ring_->give_back(slots_);
}

Result<std::shared_ptr<SharedRing>> SharedRing::create(provider::Device& device, provider::Listener& listener,
                                                       uint32_t slots, uint32_t slot_bytes) {
  if (slots < kRingSlotsMin)
    return invalid_argument("shared_receive_slots must be at least " + std::to_string(kRingSlotsMin) + ", not " +
                            std::to_string(slots));
  RRPC_ASSIGN_OR_RETURN(auto queue, listener.create_shared_receive_queue(slots));
  std::shared_ptr<SharedRing> ring(new SharedRing(std::min(slots, queue->depth()), slot_bytes));
  RRPC_ASSIGN_OR_RETURN(ring->memory_, AnonymousMapping::create(size_t{ring->slots_} * slot_bytes));
  RRPC_ASSIGN_OR_RETURN(ring->region_, device.register_memory({ring->memory_.data(), ring->memory_.size(), -1, false}));
  ring->queue_ = std::move(queue);
  std::vector<provider::ReceiveRequest> requests;
  requests.reserve(ring->slots_);
  for (uint32_t index = 0; index < ring->slots_; ++index) requests.push_back(ring->request(index));
  RRPC_RETURN_IF_ERROR(ring->queue_->post(requests));
  return ring;
}

void SharedRing::count_limit_events() {
  const uint64_t events = queue_->limit_events();
  uint64_t seen = limit_events_seen_.load(std::memory_order_relaxed);
  while (events > seen)
    if (limit_events_seen_.compare_exchange_weak(seen, events))
      return count(counters().shared_receive_low, static_cast<int64_t>(events - seen));
}

Status SharedRing::repost(std::span<const provider::ReceiveRequest> requests) {
  count_limit_events();
  return queue_->post(requests);
}

Result<ReceiveShare> SharedRing::reserve(uint32_t slots_wanted) {
  count_limit_events();
  std::lock_guard lock(mutex_);
  const uint32_t left = slots_ - slots_reserved_;
  if (left < kRingSlotsMin)
    return resource_exhausted("shared_receive_slots: the server's connections share " + std::to_string(slots_) +
                              " receive slots, and all are taken, or lost to clients that sent more than they might; "
                              "raise shared_receive_slots");
  const uint32_t given = std::min(slots_wanted, std::max(kRingSlotsMin, std::bit_floor(left / kShareOfRest)));
  slots_reserved_ += given;
  return ReceiveShare(shared_from_this(), given);
}

void SharedRing::give_back(uint32_t slots) {
  std::lock_guard lock(mutex_);
  slots_reserved_ -= slots;
}

uint32_t SharedRing::slots_reserved() const {
  std::lock_guard lock(mutex_);
  return slots_reserved_;
}

}  // namespace rrpc::endpoint
