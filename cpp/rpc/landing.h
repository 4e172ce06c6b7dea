// Where fetched buffers land: pool blocks, or the caller's own memory for one of them.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"

namespace rrpc::rpc {

// The caller's out= memory for the buffer `index`.
struct OutTarget {
  size_t index = 0;
  std::byte* data = nullptr;
  size_t length_bytes = 0;
  endpoint::RegionRef region;  // null: nothing to fetch, or written by the peer already
};

// Allocates blocks for the descriptors (an empty block where `out` takes the buffer) and gives the segments to fetch.
inline Result<std::vector<endpoint::TransferSegment>> prepare_landing(endpoint::Endpoint& endpoint,
                                                                      std::span<const endpoint::Descriptor> descriptors,
                                                                      const OutTarget* out,
                                                                      std::vector<endpoint::PoolBlock>& blocks) {
  std::vector<endpoint::TransferSegment> segments;
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const endpoint::Descriptor& descriptor = descriptors[i];
    endpoint::TransferSegment segment{nullptr, nullptr, descriptor.address, descriptor.rkey, descriptor.length_bytes};
    endpoint::PoolBlock block;
    if (out != nullptr && out->index == i) {
      segment.local = out->data;
      segment.region = out->region;
    } else {
      RRPC_ASSIGN_OR_RETURN(block, endpoint.allocate(descriptor.length_bytes, endpoint::BlockKind::kLanding));
      segment.local = block.data();
      RRPC_ASSIGN_OR_RETURN(segment.region, endpoint.sink_region_for(block.data(), block.size()));
    }
    blocks.push_back(std::move(block));
    if (segment.region != nullptr) segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace rrpc::rpc
