#include "provider/exposure_table.h"

#include <sys/random.h>

#include <cinttypes>
#include <cstdio>

namespace rrpc::provider {

// Slots made before the first is reused: what keeps generations apart on a table that holds few exposures.
static constexpr size_t kSlotsBeforeReuse = 256;
static constexpr int kRounds = 4;

static uint64_t random_secret() {
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret)) secret = static_cast<uint64_t>(now_ns());
  return secret;
}

static uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

ExposureTable::ExposureTable(uint64_t secret) : secret_(secret) {}
ExposureTable::ExposureTable() : ExposureTable(random_secret()) {}

uint16_t ExposureTable::round(uint16_t half, int index) const {
  return static_cast<uint16_t>(mix(secret_ + mix(half * 8u + static_cast<uint32_t>(index) + 1)));
}

// A Feistel network: a keyed permutation of 32 bits.
uint32_t ExposureTable::scramble(uint32_t value) const {
  auto left = static_cast<uint16_t>(value >> 16);
  auto right = static_cast<uint16_t>(value);
  for (int i = 0; i < kRounds; ++i) {
    const auto next = static_cast<uint16_t>(left ^ round(right, i));
    left = right;
    right = next;
  }
  return (static_cast<uint32_t>(left) << 16) | right;
}

uint32_t ExposureTable::unscramble(uint32_t value) const {
  auto left = static_cast<uint16_t>(value >> 16);
  auto right = static_cast<uint16_t>(value);
  for (int i = kRounds - 1; i >= 0; --i) {
    const auto previous = static_cast<uint16_t>(right ^ round(left, i));
    right = left;
    left = previous;
  }
  return (static_cast<uint32_t>(left) << 16) | right;
}

Result<uint16_t> ExposureTable::take_slot() {
  if (slots_.size() < kSlotsBeforeReuse || (free_.empty() && slots_.size() < kExposuresMax)) {
    slots_.emplace_back();
    slots_.back().generation = static_cast<uint16_t>(mix(secret_ ^ slots_.size()));
    return static_cast<uint16_t>(slots_.size() - 1);
  }
  if (free_.empty()) return resource_exhausted("too many exposed ranges on one connection (limit 65536)");
  const uint16_t index = free_.front();
  free_.pop_front();
  return index;
}

Result<uint32_t> ExposureTable::add(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                    uint32_t access) {
  if (!region.contains(address, length_bytes)) return invalid_argument("the range to expose leaves its memory region");
  if (access == 0 || (access & ~(kRemoteRead | kRemoteWrite)) != 0) return invalid_argument("bad access rights");
  RRPC_ASSIGN_OR_RETURN(const uint16_t index, take_slot());
  Slot& slot = slots_[index];
  uint32_t rkey = 0;
  do {  // callers may take 0 for "no key"
    ++slot.generation;
    rkey = scramble((static_cast<uint32_t>(index) << 16) | slot.generation);
  } while (rkey == 0);
  slot.exposure = {const_cast<std::byte*>(address), length_bytes, access};
  slot.used = true;
  ++live_count_;
  return rkey;
}

const ExposureTable::Slot* ExposureTable::find(uint32_t rkey) const {
  const uint32_t plain = unscramble(rkey);
  const size_t index = plain >> 16;
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  return slot.used && slot.generation == static_cast<uint16_t>(plain) ? &slot : nullptr;
}

bool ExposureTable::remove(uint32_t rkey) {
  const Slot* slot = find(rkey);
  if (slot == nullptr) return false;
  const auto index = static_cast<uint16_t>(slot - slots_.data());
  slots_[index].used = false;
  slots_[index].exposure = {};
  free_.push_back(index);
  --live_count_;
  return true;
}

static Status refuse(const char* why, uint32_t rkey, uint64_t address, uint64_t length_bytes, Access wanted) {
  char text[200];
  std::snprintf(text, sizeof(text), "%s of %" PRIu64 " bytes at 0x%" PRIx64 " with rkey 0x%08x refused: %s",
                wanted == kRemoteRead ? "READ" : "WRITE", length_bytes, address, rkey, why);
  return permission_denied(text);
}

Result<std::byte*> ExposureTable::check(uint32_t rkey, uint64_t remote_address, uint64_t length_bytes,
                                        Access wanted) const {
  const Slot* slot = find(rkey);
  if (slot == nullptr) return refuse("no such key, or revoked", rkey, remote_address, length_bytes, wanted);
  const Exposure& exposure = slot->exposure;
  if ((exposure.access & wanted) == 0) {
    return refuse("the range isn't open for it", rkey, remote_address, length_bytes, wanted);
  }
  const auto base = reinterpret_cast<uint64_t>(exposure.address);
  if (remote_address < base || length_bytes > exposure.length_bytes ||
      remote_address - base > exposure.length_bytes - length_bytes) {
    return refuse("outside the exposed range", rkey, remote_address, length_bytes, wanted);
  }
  return exposure.address + (remote_address - base);
}

}  // namespace rrpc::provider
