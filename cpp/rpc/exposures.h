// The memory that one call has open to the peer.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"

namespace rrpc::rpc {

class Exposures {
 public:
  // The pieces of a buffer each on their own: what lies between them isn't the peer's to see.
  Status add(endpoint::Endpoint& endpoint, endpoint::Buffer buffer, uint32_t access) {
    if (buffer.pieces.empty() || endpoint.encrypts()) return add_range(endpoint, std::move(buffer), access);
    for (const MutableBytes piece : buffer.pieces) {
      RRPC_RETURN_IF_ERROR(add_range(endpoint, {piece.data(), piece.size(), buffer.owner_id, buffer.hold, {}}, access));
      items_.back().descriptor.continues = true;
    }
    items_.back().descriptor.continues = false;
    return {};
  }
  // Pool memory that the call itself made: a message body too long for a slot.
  Status add_block(endpoint::Endpoint& endpoint, endpoint::PoolBlock block);
  // Where that body may still be changed, before the peer is told of it; seal_body() afterwards, if it is sealed.
  std::byte* body(const endpoint::Endpoint& endpoint) const {
    const endpoint::Exposure& item = items_.back();
    return endpoint.encrypts() ? item.buffer.data : item.staged.data();
  }
  Status seal_body(endpoint::Endpoint& endpoint) { return endpoint.seal_again(items_.back()); }
  void revoke_all(endpoint::Endpoint& endpoint) {
    if (items_.empty()) return;
    for (endpoint::Exposure& exposure : items_) endpoint.revoke(std::move(exposure));
    items_.clear();
    body_last_ = false;
    bytes_ = 0;
  }
  // Sends a message that tells of them. What the peer is going to READ first may follow it: the body, which tells of
  // the others, or all in their order.
  void send(endpoint::Endpoint& endpoint, uint8_t type, std::span<const Bytes> parts) const {
    if (items_.empty() || !endpoint.pushes()) return endpoint.send(type, parts);
    std::array<provider::RemoteRange, provider::kPushesMax> ranges;
    size_t count = 0;
    for (const endpoint::Exposure& item : std::span(items_).last(body_last_ ? 1 : items_.size())) {
      if (count == ranges.size()) break;
      ranges[count++] = {item.descriptor.address, item.descriptor.length_bytes, item.descriptor.rkey};
    }
    endpoint.send(type, parts, std::span(ranges).first(count));
  }
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  size_t bytes() const { return bytes_; }
  const endpoint::Descriptor& descriptor(size_t index) const { return items_[index].descriptor; }
  const endpoint::Descriptor& last() const { return items_.back().descriptor; }

 private:
  Status add_range(endpoint::Endpoint& endpoint, endpoint::Buffer buffer, uint32_t access,
                   uint32_t pieces_max = endpoint::kSealPiecesMax) {
    RRPC_ASSIGN_OR_RETURN(auto exposure, endpoint.expose(std::move(buffer), access, pieces_max));
    bytes_ += exposure.descriptor.length_bytes;
    items_.push_back(std::move(exposure));
    return {};
  }

  std::vector<endpoint::Exposure> items_;
  size_t bytes_ = 0;
  bool body_last_ = false;
};

// Keeps a message to its number of descriptors: buffers in pieces that would pass it are packed into pool memory.
Status fit_descriptors(endpoint::Endpoint& endpoint, std::span<endpoint::Buffer> buffers);

}  // namespace rrpc::rpc
