#include "provider/shm/peer_bits.h"

namespace rrpc::provider::shm {

// A word of each of so few is looked at in less time than their common line takes from cache to cache.
static constexpr size_t kWithoutBits = 8;

Result<std::shared_ptr<ProcessBits>> ProcessBits::create() {
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::create("rrpc-ready", sizeof(ReadyPage), true));
  return std::shared_ptr<ProcessBits>(new ProcessBits(std::move(mapping)));
}

uint32_t ProcessBits::claim() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const uint32_t bit = free_.back();
    free_.pop_back();
    return bit;
  }
  if (next_ == ReadyPage::kBits) return next_;
  use_words(next_ / kBitsPerWord + 1);
  return next_++;
}

void ProcessBits::release(uint32_t bit) {
  std::lock_guard lock(mutex_);
  free_.push_back(bit);
}

PeerBits::Claim::Claim(std::shared_ptr<PeerBits> owner, const PeerProcess& peer)
    : owner_(std::move(owner)), process_(peer.pid(), peer.uid()) {
  owner_->enter(*this);
}

PeerBits::Claim::~Claim() {
  if (bits_) bits_->release(bit_);
  owner_->leave(*this);
}

void PeerBits::enter(Claim& claim) {
  std::lock_guard lock(mutex_);
  OfProcess& process = processes_[claim.process_];
  const bool has_pid = claim.process_.first > 0;  // else it is in another namespace, as others may be
  if (++process.connection_count <= kWithoutBits || !has_pid) return;
  std::shared_ptr<ProcessBits> bits = process.bits.lock();
  if (!bits) {
    auto made = ProcessBits::create();
    if (!made.ok()) return;
    process.bits = bits = std::move(made).value();
  }
  claim.bit_ = bits->claim();
  if (claim.bit_ < ReadyPage::kBits) claim.bits_ = std::move(bits);
}

void PeerBits::leave(const Claim& claim) {
  std::lock_guard lock(mutex_);
  const auto process = processes_.find(claim.process_);
  if (--process->second.connection_count == 0) processes_.erase(process);
}

}  // namespace rrpc::provider::shm
