#include "endpoint/rails.h"

#include <algorithm>
#include <utility>

namespace rrpc::endpoint {

using provider::CompletionQueue;
using provider::QueuePairState;

std::optional<RailOffer> read_rail_offer(Bytes private_data) {
  ByteReader reader(private_data);
  const auto offer = reader.read<RailOffer>();
  if (reader.failed() || offer.magic != kRailMagic || offer.version != kRailVersion) return std::nullopt;
  return offer;
}

std::unique_ptr<CompletionQueue> JoinedQueue::take_out(const CompletionQueue* queue) {
  const auto it = std::ranges::find(queues_, queue, &std::unique_ptr<CompletionQueue>::get);
  if (it == queues_.end()) return nullptr;
  std::unique_ptr<CompletionQueue> taken = std::move(*it);
  queues_.erase(it);
  return taken;
}

// Each is the first in its turn, so that one which is always full lets the others have theirs.
size_t JoinedQueue::poll(std::span<provider::Completion> out) {
  size_t count = 0;
  const size_t first = turn_++ % queues_.size();
  for (size_t i = 0; i < queues_.size() && count < out.size(); ++i)
    count += queues_[(first + i) % queues_.size()]->poll(out.subspan(count));
  return count;
}

void JoinedQueue::arm() {
  for (const auto& queue : queues_) queue->arm();
}

void JoinedQueue::append_wait_handles(std::vector<provider::WaitHandle>& out) const {
  for (const auto& queue : queues_) {
    queue->append_wait_handles(out);
    // Of a rail that is being given up, amid a connection that goes on.
    if (queue->lingering()) out.push_back({provider::WaitHandle::kPollAgain});
  }
}

bool JoinedQueue::handles_tell_all() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue->handles_tell_all(); });
}

bool JoinedQueue::polls_cheaply() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue->polls_cheaply(); });
}

bool JoinedQueue::moved_bytes() const {
  return std::ranges::any_of(queues_, [](const auto& queue) { return queue->moved_bytes(); });
}

bool JoinedQueue::disarm() {
  bool all = true;
  for (const auto& queue : queues_) all = queue->disarm() && all;
  return all;
}

void JoinedQueue::look_at_wait_handles() {
  for (const auto& queue : queues_) queue->look_at_wait_handles();
}

bool JoinedQueue::lingering() const {
  return std::ranges::any_of(queues_, [](const auto& queue) { return queue->lingering(); });
}

Rails::~Rails() { destroy(); }

Status Rails::add(size_t index, RailQueues& queues, const RailToken& token, TimeNs deadline) {
  if (index >= kRailsMax)
    return invalid_argument("a connection has " + std::to_string(kRailsMax) + " rails at most, this is number " +
                            std::to_string(index + 1));
  // What is registered for the connection's own must do for the rail.
  provider::QueuePair& one = *queues.queue_pair;
  if (one.exposure_kind() != own_.exposure_kind() ||
      one.limits().dedicated_read_sinks != own_.limits().dedicated_read_sinks)
    return failed_precondition(
        "the rail's adapter and the connection's own are of different kinds (iWARP and another)");
  Rail& rail = rails_[index];
  if (rail.qp != nullptr) {
    lose(index, "another one takes its place");
    if (in_use(rail)) return failed_precondition("the rail before it isn't done with what it was at");
  }
  RailOffer offer;
  offer.rail = static_cast<uint16_t>(index);
  offer.token = token;
  one.tell_exposed();
  RRPC_RETURN_IF_ERROR(one.start(std::as_bytes(std::span(&offer, 1))));
  RailQueues before{joined_.take_out(rail.cq), std::move(rail.qp)};
  rail = {};
  rail.deadline = deadline;
  rail.cq = queues.completions.get();
  rail.qp = std::move(queues.queue_pair);
  joined_.add(std::move(queues.completions));
  queues = std::move(before);
  return {};
}

TimeNs Rails::next_deadline() const {
  TimeNs next = kNever;
  for (const Rail& rail : rails_)
    if (rail.qp != nullptr && rail.lost.empty()) next = std::min(next, rail.deadline);
  return next;
}

void Rails::expire(TimeNs now) {
  for (size_t i = 0; i < kRailsMax; ++i) {
    if (now < rails_[i].deadline) continue;
    if (state(i) == RailState::kConnecting) lose(i, "it wasn't connected in time");
    rails_[i].deadline = kNever;
  }
}

RailState Rails::state(size_t index) {
  Rail& rail = rails_[index];
  if (rail.qp == nullptr) return RailState::kNone;
  if (!rail.lost.empty()) return RailState::kLost;
  const QueuePairState state = rail.qp->state();
  if (state == QueuePairState::kConnected && (rail.met || read_rail_offer(rail.qp->peer_private_data()))) {
    rail.met = true;
    rail.deadline = kNever;
    return RailState::kCarries;
  }
  if (state == QueuePairState::kInit || state == QueuePairState::kConnecting) return RailState::kConnecting;
  lose(index, state == QueuePairState::kError ? rail.qp->error().message() : "what answers there is no rail of rrpc");
  return RailState::kLost;
}

std::string Rails::why_not(size_t index) {
  switch (state(index)) {
    case RailState::kCarries:
      return {};
    case RailState::kConnecting:
      return "it is being connected";
    case RailState::kLost:
      return rails_[index].lost;
    case RailState::kNone:
      break;
  }
  return "it wasn't dialled yet";
}

void Rails::lose(size_t index, const std::string& reason) {
  Rail& rail = rails_[index];
  if (rail.qp == nullptr) return;
  if (rail.lost.empty()) rail.lost = reason.empty() ? "lost" : reason;
  if (rail.qp->state() != QueuePairState::kError) rail.qp->disconnect(reason);
}

void Rails::disconnect(const std::string& reason) {
  for (size_t i = 0; i < kRailsMax; ++i) lose(i, reason);
}

void Rails::destroy() {
  for (Rail& rail : rails_) rail.qp.reset();
}

bool Rails::hold_device() const {
  return std::ranges::any_of(rails_, [](const Rail& rail) { return rail.qp != nullptr && rail.qp->holds_device(); });
}

void Rails::release_device() {
  for (Rail& rail : rails_)
    if (rail.qp != nullptr) rail.qp->release_device();
}

// They are told by a message of the connection's own, which may be faster than a rail's adapter.
void Rails::expose(const provider::MemoryRegion& region, const std::byte* address, size_t length_bytes,
                   RailKeys& keys) {
  for (size_t i = 0; i < kRailsMax; ++i) {
    if (!carries(i)) continue;
    const Result<uint32_t> key = rails_[i].qp->expose(region, address, length_bytes, provider::kRemoteRead);
    if (!key.ok()) continue;
    keys[i] = *key;
    ++rails_[i].exposed;
  }
  for (size_t i = 0; i < kRailsMax; ++i)
    if (keys[i] != 0 && !rails_[i].qp->wait_for_exposures()) lose(i, "its adapter is too slow to open memory");
}

bool Rails::revoke(const RailKeys& keys) {
  bool over = true;
  for (size_t i = 0; i < kRailsMax; ++i)
    if (keys[i] != 0) over = rails_[i].qp->revoke(keys[i]) && over;
  return over;
}

bool Rails::revoking(const RailKeys& keys) const {
  for (size_t i = 0; i < kRailsMax; ++i)
    if (keys[i] != 0 && rails_[i].qp->revoking(keys[i])) return true;
  return false;
}

void Rails::closed(const RailKeys& keys) {
  for (size_t i = 0; i < kRailsMax; ++i)
    if (keys[i] != 0) --rails_[i].exposed;
}

}  // namespace rrpc::endpoint
