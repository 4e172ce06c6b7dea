// Receive slots that the connections of one listener share, for servers with many clients: a ring for each would be
// memory for messages that seldom come at once. What the connections offer their peers never adds up to more slots
// than there are, so that every message that was granted finds a receive. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "base/anonymous_mapping.h"
#include "base/result.h"
#include "endpoint/work_ids.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

class SharedRing;

// One connection's part of a shared ring: so many messages of its peer may be on their way. Destroyed after the
// connection's queue pair, it gives the part back.
class ReceiveShare {
 public:
  ReceiveShare() = default;
  ReceiveShare(ReceiveShare&& other) noexcept : ring_(std::move(other.ring_)), slots_(std::exchange(other.slots_, 0)) {}
  ReceiveShare& operator=(ReceiveShare&& other) noexcept {
    std::swap(ring_, other.ring_);
    std::swap(slots_, other.slots_);
    return *this;
  }
  ~ReceiveShare();

  explicit operator bool() const { return ring_ != nullptr; }
  SharedRing& ring() const { return *ring_; }
  uint32_t slots() const { return slots_; }
  // Receives were lost: as if the connection lived on, so that those of others stay what they were granted.
  void forfeit() { slots_ = 0; }

 private:
  friend class SharedRing;
  ReceiveShare(std::shared_ptr<SharedRing> ring, uint32_t slots) : ring_(std::move(ring)), slots_(slots) {}

  std::shared_ptr<SharedRing> ring_;
  uint32_t slots_ = 0;
};

class SharedRing : public std::enable_shared_from_this<SharedRing> {
 public:
  // With every slot posted. FailedPrecondition where the listener's transport shares no receives.
  static Result<std::shared_ptr<SharedRing>> create(provider::Device& device, provider::Listener& listener,
                                                    uint32_t slots, uint32_t slot_bytes);

  // As many as wanted (a power of two) while there are plenty, fewer when they run low; ResourceExhausted when fewer
  // than the smallest ring are left.
  Result<ReceiveShare> reserve(uint32_t slots_wanted);
  uint32_t slots() const { return slots_; }
  uint32_t slots_reserved() const;

  provider::SharedReceiveQueue& queue() { return *queue_; }
  const std::byte* slot(uint32_t index) const { return memory_.data() + size_t{index} * slot_bytes_; }
  provider::ReceiveRequest request(uint32_t index) {
    return {kTagReceive | index, {memory_.data() + size_t{index} * slot_bytes_, slot_bytes_, region_.get()}};
  }
  // Of slots whose messages were copied out.
  Status repost(std::span<const provider::ReceiveRequest> requests);

 private:
  friend class ReceiveShare;
  SharedRing(uint32_t slots, uint32_t slot_bytes) : slots_(slots), slot_bytes_(slot_bytes) {}
  void count_limit_events();
  void give_back(uint32_t slots);

  const uint32_t slots_;
  const uint32_t slot_bytes_;
  AnonymousMapping memory_;
  std::unique_ptr<provider::MemoryRegion> region_;
  std::unique_ptr<provider::SharedReceiveQueue> queue_;  // destroyed before what it works on
  std::atomic<uint64_t> limit_events_seen_{0};
  mutable std::mutex mutex_;
  uint32_t slots_reserved_ = 0;
};

}  // namespace rrpc::endpoint
