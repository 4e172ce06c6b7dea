// The first bytes of every message, and the private data with which a connection is offered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rrpc::endpoint {

constexpr uint16_t kHeaderMagic = 0x7272;     // "rr"
constexpr uint32_t kOfferMagic = 0x43505252;  // "RRPC"
constexpr uint16_t kWireVersion = 1;

struct MessageHeader {
  uint16_t magic = kHeaderMagic;
  uint8_t type = 0;
  uint8_t reserved = 0;
  uint32_t body_bytes = 0;
  uint32_t epoch = 0;            // the sender's, as announced in its offer
  uint32_t data_granted = 0;     // cumulative
  uint32_t control_granted = 0;  // cumulative

  // Word by word: put together in memory first it would take half as many instructions more.
  void write(std::byte* target) const {
    const uint64_t first = magic | uint64_t{type} << 16 | uint64_t{body_bytes} << 32;
    const uint64_t second = epoch | uint64_t{data_granted} << 32;
    std::memcpy(target, &first, sizeof(first));
    std::memcpy(target + sizeof(first), &second, sizeof(second));
    std::memcpy(target + sizeof(first) + sizeof(second), &control_granted, sizeof(control_granted));
  }
};
static_assert(sizeof(MessageHeader) == 20);

// Messages may invalidate what this end has exposed: its keys are memory windows.
constexpr uint16_t kOfferInvalidates = 1;

struct Offer {
  uint32_t magic = kOfferMagic;
  uint16_t version = kWireVersion;
  uint16_t flags = 0;  // those that aren't known mean nothing
  uint32_t slots = 0;
  uint32_t slot_bytes = 0;
  uint32_t epoch = 0;
};
static_assert(sizeof(Offer) == 20);

}  // namespace rrpc::endpoint
