#include "provider/shm/shared_exposures.h"

#include <algorithm>

namespace rrpc::provider::shm {

namespace {

constexpr uint32_t kGenerationMask = (1u << (32 - kExposureIndexBits)) - 1;
uint32_t rkey_of(uint32_t index, uint32_t generation) { return index | generation << kExposureIndexBits; }

}  // namespace

// Looks at a few, so that the ranges that a peer keeps for long cost nothing.
void SharedExposures::reclaim_kept() {
  constexpr int kLooks = 2;
  for (int looks = 0; looks < kLooks && !kept_.empty(); ++looks) {
    const uint32_t index = kept_.front();
    kept_.pop_front();
    const uint32_t word = control_.exposure(index).lending.load(std::memory_order_acquire);
    (word == lend_word(slots_[index].generation, kTaken) ? kept_ : free_).push_back(index);
  }
}

Result<uint32_t> SharedExposures::take_index() {
  reclaim_kept();
  const bool rested = free_.size() >= kReuseDistance || (slots_.size() >= kReuseDistance && !free_.empty());
  if (!rested && slots_.size() < kExposureCount) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  if (free_.empty())
    return resource_exhausted("more than " + std::to_string(kExposureCount) + " ranges exposed on one connection");
  const uint32_t index = free_.front();
  free_.pop_front();
  return index;
}

Result<uint32_t> SharedExposures::open(const Range& range) {
  RRPC_ASSIGN_OR_RETURN(uint32_t index, take_index());
  Slot& slot = slots_[index];
  slot.generation = (slot.generation + 1) & kGenerationMask;
  if (slot.generation == 0) slot.generation = 1;
  slot.slab_id = range.slab_id;
  slot.open = true;
  slot.writable = (range.rights & kRemoteWrite) != 0;
  slot.lent = (range.rights & kLend) != 0;
  ExposureEntry& entry = control_.exposure(index);
  entry.rights.store(range.rights, std::memory_order_relaxed);
  entry.slab_id.store(range.slab_id, std::memory_order_relaxed);
  entry.address.store(range.address, std::memory_order_relaxed);
  entry.length_bytes.store(range.length_bytes, std::memory_order_relaxed);
  entry.lending.store(slot.lent ? lend_word(slot.generation, kOffered) : 0, std::memory_order_relaxed);
  entry.generation.store(slot.generation, std::memory_order_release);
  return rkey_of(index, slot.generation);
}

// An exchange, not a store: whatever the owner writes to the memory afterwards must come after it for the reader.
void SharedExposures::close_index(uint32_t index) {
  slots_[index].open = false;
  control_.exposure(index).generation.exchange(0, std::memory_order_seq_cst);
  fence(std::memory_order_release);  // on arm64 the next exposure's fields might be seen before it otherwise
  if (!slots_[index].lent) free_.push_back(index);  // otherwise close_lent() decides
}

// The peer takes a range by exchanging the same word: one of the two comes first.
bool SharedExposures::close_lent(uint32_t rkey) {
  const uint32_t index = rkey & (kExposureCount - 1);
  if (index >= slots_.size()) return false;
  Slot& slot = slots_[index];
  if (!slot.lent || rkey_of(index, slot.generation) != rkey) return false;
  if (slot.open) close_index(index);
  slot.lent = false;
  std::atomic<uint32_t>& lending = control_.exposure(index).lending;
  uint32_t word = lend_word(slot.generation, kOffered);
  const bool withdrawn = lending.compare_exchange_strong(word, 0, std::memory_order_acq_rel);
  const bool taken = !withdrawn && word == lend_word(slot.generation, kTaken);
  (taken ? kept_ : free_).push_back(index);
  return taken;
}

// A peer writes through one key at a time: whoever wrote through the key noted before is out of it by now.
bool SharedExposures::note_writer(uint32_t rkey) {
  if (control_.header().active_write.load(std::memory_order_seq_cst) != rkey) return false;
  writer_rkey_ = rkey;
  writer_deadline_ = now_ns() + kWriterPatience;
  return true;
}

bool SharedExposures::writing(uint32_t rkey) const {
  return rkey == writer_rkey_ && control_.header().active_write.load(std::memory_order_seq_cst) == rkey &&
         now_ns() < writer_deadline_;
}

bool SharedExposures::close(uint32_t rkey) {
  const uint32_t index = rkey & (kExposureCount - 1);
  if (index >= slots_.size()) return true;
  const Slot slot = slots_[index];
  if (!slot.open || rkey_of(index, slot.generation) != rkey) return !writing(rkey);
  close_index(index);
  return !slot.writable || !note_writer(rkey);
}

void SharedExposures::close_all() {
  for (uint32_t index = 0; index < slots_.size(); ++index)
    if (slots_[index].open) (void)close(rkey_of(index, slots_[index].generation));
}

bool SharedExposures::any_open_in(uint32_t slab_id) const {
  return std::ranges::any_of(slots_, [&](const Slot& slot) { return slot.open && slot.slab_id == slab_id; });
}

}  // namespace rrpc::provider::shm
