// From "done" to "polled": completions become visible late and in order, and memory goes back to its owner.
#include <algorithm>

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

bool SimQueuePair::claim(const Sge& sge, Piece& piece) {
  if (!sim::claim(fabric_, host_, sge, piece)) return false;
  if (fabric_.plan.posting_needs_adoption && !adopted_.contains(piece.lkey))
    violation("posted memory of a region that was not adopted");
  return true;
}

void SimQueuePair::complete_send(const SendRequestPtr& request) {
  Completion completion{request->wr_id, request->opcode, request->status, request->length_bytes, number()};
  make_visible_later({completion, request, nullptr}, last_send_visible_);
}

void SimQueuePair::complete_receive(const ReceiveSlotPtr& slot, WcStatus status, uint32_t length_bytes) {
  Completion completion{slot->wr_id, Opcode::kReceive, status, length_bytes, number()};
  make_visible_later({completion, nullptr, slot}, last_receive_visible_);
}

void SimQueuePair::make_visible_later(CompletionEntry entry, TimeNs& last_visible) {
  last_visible = std::max(last_visible, fabric_.events.now() + fabric_.completion_delay());
  fabric_.events.at(last_visible, [&fabric = fabric_, entry = std::move(entry)] {
    if (SimQueuePair* self = fabric.queue_pair(entry.completion.qp_number)) self->make_visible(entry);
  });
}

void SimQueuePair::make_visible(const CompletionEntry& entry) {
  if (!host_->alive) return;
  fabric_.trace(number(), std::string("completes, ") + std::string(wc_status_name(entry.completion.status)),
                entry.completion.wr_id);
  if (entry.completion.status == WcStatus::kFlushed && fabric_.plan.scribble) {
    if (entry.receive) {
      verify_slot(*entry.receive);
      scribble(memory_of(fabric_, entry.receive->piece));
      entry.receive->checksum = checksum_of(memory_of(fabric_, entry.receive->piece));
    } else if (entry.send->opcode == Opcode::kRead) {
      for (const Piece& piece : entry.send->pieces) scribble(memory_of(fabric_, piece));
    }
  }
  if (entry.receive) entry.receive->completed = true;
  cq_.push(entry);
  fabric_.tell(number());
}

const std::byte* SimQueuePair::on_polled(const CompletionEntry& entry) {
  if (entry.send) return release_sends(entry.send->sequence), nullptr;
  verify_slot(*entry.receive);
  unclaim(fabric_, entry.receive->piece);
  held_receives_.pop_front();
  if (limits_.messages_complete) polled_receives_[entry.receive->wr_id] = entry.receive->sge;
  const MutableBytes memory = memory_of(fabric_, entry.receive->piece);
  if (entry.completion.status != WcStatus::kSuccess || memory.empty() || shared_receives_ != nullptr ||
      !fabric_.rng.chance(fabric_.plan.elsewhere_probability))
    return nullptr;
  const std::byte* const place = cq_.keep(number(), entry.receive->wr_id, memory.first(entry.completion.length_bytes));
  scribble(memory);
  return place;
}

// A completion also gives back the unsignalled requests before it.
void SimQueuePair::release_sends(uint64_t last_sequence) {
  while (!held_sends_.empty() && held_sends_.front()->sequence <= last_sequence) {
    const SendRequest& request = *held_sends_.front();
    verify_source(request);
    for (const Piece& piece : request.pieces) unclaim(fabric_, piece);
    held_sends_.pop_front();
  }
}

void SimQueuePair::verify_source(const SendRequest& request) {
  if (request.opcode == Opcode::kRead || request.pieces.empty() || request.local_fault) return;
  if (source_checksum(fabric_, request) != request.checksum)
    violation("send buffer of request " + std::to_string(request.wr_id) + " changed or gone before its completion");
}

void SimQueuePair::verify_slot(const ReceiveSlot& slot) {
  if (slot.local_fault) return;
  if (checksum_of(memory_of(fabric_, slot.piece)) != slot.checksum)
    violation("receive buffer of request " + std::to_string(slot.wr_id) + " changed or gone before its completion");
}

}  // namespace rrpc::provider::sim
