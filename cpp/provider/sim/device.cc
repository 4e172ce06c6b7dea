#include "provider/sim/device.h"

#include <algorithm>

namespace rrpc::provider::sim {

SimMemoryRegion::~SimMemoryRegion() {
  const RegionRecord* record = fabric_.regions.find(lkey());
  if (record->posted_count > 0) fabric_.violation(record->host, "memory region destroyed under posted work");
  if (record->exposed_count > 0) fabric_.violation(record->host, "memory region destroyed under a live exposure");
  fabric_.regions.remove(lkey());
}

static void refuse_later(Fabric& fabric, uint32_t client_number, const std::string& why) {
  fabric.events.after(fabric.message_delay(), [&fabric, client_number, why] {
    if (SimQueuePair* client = fabric.queue_pair(client_number)) client->on_refused(why);
  });
}

void deliver_offer(Fabric& fabric, const std::string& address, const Offer& offer, bool refused) {
  SimListener* listener = fabric.listener(address);
  if (listener == nullptr) return refuse_later(fabric, offer.client_number, "nobody listens there");
  if (!listener->host()->alive || !fabric.link_up(offer.client_host, listener->host())) return;
  if (refused || !listener->offer(offer)) refuse_later(fabric, offer.client_number, "by the listener");
}

SimListener::SimListener(Fabric& fabric, Host* host, std::string address, size_t backlog)
    : fabric_(fabric), host_(host), address_(std::move(address)), backlog_(backlog) {
  fabric_.add_listener(address_, this);
}

SimListener::~SimListener() {
  fabric_.remove_listener(address_);
  if (!host_->alive) return;
  for (const Offer& offer : offers_) refuse_later(fabric_, offer.client_number, "the listener closed");
}

bool SimListener::offer(const Offer& offer) {
  if (offers_.size() >= backlog_) return false;
  offers_.push_back(offer);
  fabric_.tell(0);
  return true;
}

Result<std::unique_ptr<QueuePair>> SimListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  while (!offers_.empty()) {
    const Offer offer = std::move(offers_.front());
    offers_.pop_front();
    const SimQueuePair* client = fabric_.queue_pair(offer.client_number);
    if (client == nullptr || client->state() != QueuePairState::kConnecting) continue;  // gave up meanwhile
    auto server = std::make_unique<SimQueuePair>(fabric_, host_, static_cast<SimCompletionQueue&>(cq), config, "");
    server->take_offer(offer);
    return std::unique_ptr<QueuePair>(std::move(server));
  }
  return std::unique_ptr<QueuePair>();
}

Result<std::unique_ptr<SharedReceiveQueue>> SimListener::create_shared_receive_queue(uint32_t depth) {
  return std::unique_ptr<SharedReceiveQueue>(std::make_unique<SimSharedReceiveQueue>(fabric_, host_, depth));
}

Result<std::unique_ptr<MemoryRegion>> SimDevice::register_memory(const MemoryRange& range) {
  if (range.address == nullptr || range.length_bytes == 0)
    return invalid_argument("an empty range cannot be registered");
  RRPC_RETURN_IF_ERROR(check_host_memory(range));
  return std::unique_ptr<MemoryRegion>(std::make_unique<SimMemoryRegion>(fabric_, host_, range));
}

std::unique_ptr<CompletionQueue> SimDevice::create_completion_queue(uint32_t depth) {
  return std::make_unique<SimCompletionQueue>(fabric_, host_, depth);
}

Result<std::unique_ptr<Listener>> SimDevice::listen(const std::string& address, const ListenOptions& options) {
  if (address.empty()) return invalid_argument("an empty address");
  if (fabric_.listener(address) != nullptr)
    return Status(StatusCode::kAlreadyExists, "address " + address + " is in use");
  const auto backlog = static_cast<size_t>(std::max(options.backlog, 0));
  return std::unique_ptr<Listener>(std::make_unique<SimListener>(fabric_, host_, address, backlog));
}

Result<std::unique_ptr<QueuePair>> SimDevice::open(CompletionQueue& cq, const std::string& address,
                                                   const QueuePairConfig& config, TimeNs /*deadline*/) {
  if (address.empty()) return invalid_argument("an empty address");
  return std::unique_ptr<QueuePair>(
      std::make_unique<SimQueuePair>(fabric_, host_, static_cast<SimCompletionQueue&>(cq), config, address));
}

}  // namespace rrpc::provider::sim
