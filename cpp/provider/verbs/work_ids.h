// The wr_id that a device gets: which queue, and of a request the sequence number there, of a shared receive its slot
// (a queue pair's own receives complete in order and need no number). A completion in error has no valid opcode.
#pragma once

#include <cstdint>

namespace rrpc::provider::verbs {

constexpr uint64_t kSendBit = 1ULL << 63;

constexpr uint64_t send_id(uint64_t sequence) { return sequence | kSendBit; }
constexpr uint64_t receive_id(uint64_t sequence) { return sequence & ~kSendBit; }
constexpr bool is_send(uint64_t wr_id) { return (wr_id & kSendBit) != 0; }
constexpr uint64_t sequence_of(uint64_t wr_id) { return wr_id & ~kSendBit; }

}  // namespace rrpc::provider::verbs
