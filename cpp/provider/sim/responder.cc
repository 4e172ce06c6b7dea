#include <algorithm>

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

SimQueuePair::ReceiveSlotPtr SimQueuePair::next_receive() {
  ReceiveSlotPtr slot;
  if (shared_receives_ != nullptr) {
    slot = shared_receives_->take();
    if (slot != nullptr) held_receives_.push_back(slot);
  } else if (!open_receives_.empty()) {
    slot = std::move(open_receives_.front());
    open_receives_.pop_front();
  }
  return slot;
}

void SimQueuePair::on_send(const SendRequestPtr& request) {
  if (!serves()) return;
  const ReceiveSlotPtr slot = next_receive();
  if (slot == nullptr) {
    violation("receiver not ready: a send found no receive posted");
    answer(request, WcStatus::kRnrRetryExceeded);
    return close_down(internal_error("receiver not ready: a send found no receive posted"));
  }
  verify_slot(*slot);
  const MutableBytes memory = memory_of(fabric_, slot->piece);
  if (slot->local_fault || (memory.empty() && slot->piece.length_bytes > 0))
    return fail_receive(request, slot, WcStatus::kLocalProtection);
  if (request->length_bytes > memory.size()) return fail_receive(request, slot, WcStatus::kLocalLength);
  if (request->invalidate_rkey != 0 && !invalidate(request->invalidate_rkey))
    return fail_receive(request, slot, WcStatus::kLocalProtection);
  const std::vector<std::byte> bytes = gather(fabric_, *request);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  slot->checksum = checksum_of(memory);
  complete_receive(slot, WcStatus::kSuccess, request->length_bytes);
  answer(request, WcStatus::kSuccess);
}

// An adapter ends the connection over a key that isn't open.
bool SimQueuePair::invalidate(uint32_t rkey) {
  if (!exposed_.contains(rkey) || exposed_.at(rkey).revoking) return false;
  end_exposure(rkey);
  invalidated_.insert(rkey);
  return true;
}

void SimQueuePair::fail_receive(const SendRequestPtr& request, const ReceiveSlotPtr& slot, WcStatus status) {
  const std::string name(wc_status_name(status));
  violation("a message of " + std::to_string(request->length_bytes) + " bytes could not land: " + name);
  complete_receive(slot, status, 0);
  answer(request, WcStatus::kRemoteOperation);
  close_down(internal_error("a message could not land: " + name));
}

void SimQueuePair::on_write(const SendRequestPtr& request) {
  if (!serves()) return;
  std::byte* memory = exposed_memory(request->rkey, request->remote_address, request->length_bytes, kRemoteWrite);
  if (memory == nullptr) return refuse(request);
  const std::vector<std::byte> bytes = gather(fabric_, *request);
  std::copy(bytes.begin(), bytes.end(), memory);
  answer(request, WcStatus::kSuccess);
}

void SimQueuePair::on_read(const SendRequestPtr& request) {
  if (!serves()) return;
  if (exposed_memory(request->rkey, request->remote_address, request->length_bytes, kRemoteRead) == nullptr)
    return refuse(request);
  const auto cut_count = fabric_.rng.between(0, static_cast<int64_t>(fabric_.plan.read_pieces_max) - 1);
  std::vector<size_t> bounds{0, request->length_bytes};
  for (int64_t i = 0; i < cut_count; ++i)
    bounds.push_back(static_cast<size_t>(fabric_.rng.between(0, request->length_bytes)));
  std::sort(bounds.begin(), bounds.end());
  const auto piece_count = static_cast<uint32_t>(bounds.size() - 1);
  const bool late = fabric_.rng.chance(fabric_.plan.late_read_probability);
  const TimeNs base = late ? fabric_.rng.between(0, fabric_.plan.late_read_delay_ns_max) : 0;
  for (uint32_t i = 0; i < piece_count; ++i) {
    fabric_.events.after(base + fabric_.rng.between(0, fabric_.plan.read_spread_ns_max),
                         [&fabric = fabric_, number = number(), request, offset = bounds[i],
                          length = bounds[i + 1] - bounds[i], piece_count] {
                           if (SimQueuePair* self = fabric.queue_pair(number))
                             self->sample(request, offset, length, piece_count);
                         });
  }
}

// The key is looked up again for every piece: no byte leaves after its revocation.
void SimQueuePair::sample(const SendRequestPtr& request, size_t offset_bytes, size_t length_bytes,
                          uint32_t piece_count) {
  if (state_ != QueuePairState::kConnected || !host_->alive) return;
  const std::byte* memory =
      exposed_memory(request->rkey, request->remote_address + offset_bytes, length_bytes, kRemoteRead);
  if (memory == nullptr) return refuse(request);
  fabric_.trace(number(), "samples " + std::to_string(length_bytes) + " bytes for", request->wr_id);
  out_->send([request, offset_bytes, bytes = std::vector(memory, memory + length_bytes),
              piece_count](SimQueuePair& peer) { peer.on_read_piece(request, offset_bytes, bytes, piece_count); });
}

void SimQueuePair::answer(const SendRequestPtr& request, WcStatus status) {
  out_->send([request, status](SimQueuePair& peer) { peer.on_answer(request, status); });
}

void SimQueuePair::refuse(const SendRequestPtr& request) {
  fabric_.trace(number(), "refuses", request->wr_id);
  refused_ = true;
  answer(request, WcStatus::kRemoteAccess);
}

std::byte* SimQueuePair::exposed_memory(uint32_t rkey, uint64_t address, uint64_t length_bytes, Access right) {
  const Result<std::byte*> memory = exposures_.check(rkey, address, length_bytes, right);
  if (!memory.ok() || fabric_.regions.find(exposed_.at(rkey).piece.lkey) == nullptr) return nullptr;
  return memory.value();
}

}  // namespace rrpc::provider::sim
