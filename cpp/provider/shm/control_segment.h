// The memory that one side creates and its peer maps writable: where that side receives. Both ends treat all of it as
// the other's bytes; whatever matters for safety is kept in private copies or checked before use.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/memfd.h"
#include "base/result.h"

namespace rrpc::provider::shm {

constexpr uint32_t kReceiveDepthMax = 1 << 16;
constexpr uint32_t kExposureIndexBits = 16;  // pages of the table that aren't used cost nothing
constexpr uint32_t kExposureCount = 1 << kExposureIndexBits;

// The n-th receive of a connection walks through these values; none of them recurs before 2^30 receives.
constexpr uint32_t kWithdrawn = 0;
constexpr uint32_t posted_state(uint32_t sequence) { return sequence * 4 + 1; }
constexpr uint32_t claimed_state(uint32_t sequence) { return sequence * 4 + 2; }  // the sender is copying
constexpr uint32_t landed_state(uint32_t sequence) { return sequence * 4 + 3; }

// A message that fits lies in the entry itself: no line of memory beside the one that tells of it, and few pages for
// all of a ring.
constexpr uint32_t kEntryMessageBytes = 232;
constexpr uint32_t kLandedInEntry = 1U << 31;  // beside the length

struct alignas(64) ReceiveEntry {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> slab_id;
  std::atomic<uint64_t> offset_bytes;
  std::atomic<uint32_t> posted_bytes;
  std::atomic<uint32_t> landed_bytes;
  std::byte message[kEntryMessageBytes];
};

enum ExposureKind : uint32_t { kMapped = 1 << 8, kOrdinary = 1 << 9 };  // beside the Access bits

// What has become of an exposure that may be lent, with its generation. The owner offers the range; the peer takes it,
// and returns it when nothing reads it any more. The owner withdraws an offer that isn't taken.
enum LendState : uint32_t { kOffered = 1, kTaken = 2, kReturned = 3 };
constexpr uint32_t lend_word(uint32_t generation, LendState state) { return generation * 4 + state; }

struct alignas(32) ExposureEntry {
  std::atomic<uint32_t> generation;  // 0: closed
  std::atomic<uint32_t> rights;      // Access | ExposureKind
  std::atomic<uint32_t> slab_id;
  std::atomic<uint32_t> lending;  // lend_word(); 0: not lent
  std::atomic<uint64_t> address;  // the owner's
  std::atomic<uint64_t> length_bytes;
};

struct alignas(64) ControlHeader {
  alignas(64) std::atomic<uint32_t> armed;         // WokenBy: the receiver sleeps; whoever lands that rings the bell
  std::atomic<uint32_t> raises_bits;               // the owner raises its ready bit after each message that it sends
  alignas(64) std::atomic<uint32_t> active_write;  // the rkey that the peer is writing through, 0 for none
};

static_assert(sizeof(ReceiveEntry) == 256 && sizeof(ExposureEntry) == 32 && sizeof(ControlHeader) == 128);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// Orders the copy before the second look at what permitted it.
inline void fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)  // no fences there; the two processes are beyond its sight anyway
  (void)order;
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(order);
#endif
}

class ControlSegment {
 public:
  static size_t segment_bytes(uint32_t ring_entries) {
    constexpr size_t kPage = 4096;
    const size_t used =
        sizeof(ControlHeader) + ring_entries * sizeof(ReceiveEntry) + kExposureCount * sizeof(ExposureEntry);
    return (used + kPage - 1) / kPage * kPage;
  }
  static uint32_t ring_entries(uint32_t receive_depth) { return std::bit_ceil(receive_depth == 0 ? 1 : receive_depth); }

  ControlSegment() = default;
  ControlSegment(SharedMapping mapping, uint32_t ring_entries)
      : mapping_(std::make_shared<SharedMapping>(std::move(mapping))),
        data_(mapping_->data()),
        mask_(ring_entries - 1) {}

  explicit operator bool() const { return data_ != nullptr; }
  uint32_t ring_entries() const { return mask_ + 1; }
  int fd() const { return mapping_->fd(); }
  void close_fd() { mapping_->close_fd(); }

  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(data_); }
  ReceiveEntry& receive(uint32_t sequence) const {
    return reinterpret_cast<ReceiveEntry*>(data_ + sizeof(ControlHeader))[sequence & mask_];
  }
  ExposureEntry& exposure(uint32_t index) const {
    std::byte* table = data_ + sizeof(ControlHeader) + ring_entries() * sizeof(ReceiveEntry);
    return reinterpret_cast<ExposureEntry*>(table)[index & (kExposureCount - 1)];
  }
  // The word of an entry, for whoever outlives the queue pair.
  std::shared_ptr<std::atomic<uint32_t>> lending(uint32_t index) const { return {mapping_, &exposure(index).lending}; }

 private:
  std::shared_ptr<SharedMapping> mapping_;
  std::byte* data_ = nullptr;
  uint32_t mask_ = 0;
};

}  // namespace rrpc::provider::shm
