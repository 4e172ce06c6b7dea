// The memory that one call has open to the peer.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"

namespace rrpc::rpc {

class Exposures {
 public:
  Status add(endpoint::Endpoint& endpoint, endpoint::Buffer buffer, uint32_t access) {
    RRPC_ASSIGN_OR_RETURN(auto exposure, endpoint.expose(std::move(buffer), access));
    bytes_ += exposure.descriptor.length_bytes;
    items_.push_back(std::move(exposure));
    return {};
  }
  // Pool memory that the call itself made: a message body too long for a slot.
  Status add_block(endpoint::Endpoint& endpoint, endpoint::PoolBlock block) {
    endpoint::Buffer buffer{block.data(), block.size(), endpoint::kNoOwner, nullptr};
    RRPC_RETURN_IF_ERROR(add(endpoint, std::move(buffer), provider::kRemoteRead));
    // Where even pool memory had to be staged, the copy is what the peer reads.
    if (!items_.back().staged) items_.back().staged = std::move(block);
    return {};
  }
  void revoke_all(endpoint::Endpoint& endpoint) {
    for (endpoint::Exposure& exposure : items_) endpoint.revoke(std::move(exposure));
    items_.clear();
    bytes_ = 0;
  }
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  size_t bytes() const { return bytes_; }
  const endpoint::Descriptor& descriptor(size_t index) const { return items_[index].descriptor; }
  const endpoint::Descriptor& last() const { return items_.back().descriptor; }

 private:
  std::vector<endpoint::Exposure> items_;
  size_t bytes_ = 0;
};

}  // namespace rrpc::rpc
