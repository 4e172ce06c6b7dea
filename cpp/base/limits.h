// Every bound of the core that isn't an option of one connection. Nothing grows without end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rrpc {

constexpr uint32_t kControlSlotsCounted = 4;  // DONE, CANCEL, PING...: acknowledged by a cumulative counter
constexpr uint32_t kControlSlotsCredit = 4;   // stand-alone CREDIT messages, which earn no return
constexpr uint32_t kControlSlots = kControlSlotsCounted + kControlSlotsCredit;

constexpr uint32_t kRingSlotsMin = 2 * kControlSlots;
constexpr uint32_t kRingSlotsMax = 4096;
constexpr uint32_t kSlotBytesMin = 512;
constexpr uint32_t kSlotBytesMax = 1 << 20;

constexpr uint32_t kReadChunkBytes = 1 << 20;
constexpr uint32_t kDescriptorsPerMessageMax = UINT16_MAX;  // 16 bits count them
constexpr uint64_t kMessageBytesMax = 1ULL << 40;
constexpr uint32_t kStreamWindowItemsMax = 1 << 20;

// What is exposed to a peer of another user on this host (--any-user) is copied for it alone: so much at a time, for
// each connection.
constexpr uint64_t kOtherUserBytesMax = 256 << 20;

}  // namespace rrpc
