// Where fetched buffers land: pool blocks, or the caller's own memory for one of them.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"
#include "rpc/messages.h"

namespace rrpc::rpc {

// The caller's out= memory for the buffer `index`.
struct OutTarget {
  size_t index = 0;
  std::byte* data = nullptr;
  size_t length_bytes = 0;
  endpoint::RegionRef region;  // null: nothing to fetch, or written by the peer already
};

// Allocates a block for each buffer (an empty one where `out` takes it) and gives the segments to fetch: the pieces of
// a buffer land one behind the other.
inline Result<std::vector<endpoint::TransferSegment>> prepare_landing(endpoint::Endpoint& endpoint,
                                                                      std::span<const endpoint::Descriptor> descriptors,
                                                                      const OutTarget* out,
                                                                      std::vector<endpoint::PoolBlock>& blocks) {
  std::vector<endpoint::TransferSegment> segments;
  for (size_t i = 0; !descriptors.empty(); ++i) {
    const std::span<const endpoint::Descriptor> pieces = first_buffer(descriptors);
    descriptors = descriptors.subspan(pieces.size());
    std::byte* local = nullptr;
    endpoint::RegionRef region;
    endpoint::PoolBlock block;
    if (out != nullptr && out->index == i) {
      local = out->data;
      region = out->region;
    } else {
      RRPC_ASSIGN_OR_RETURN(block, endpoint.allocate(total_bytes(pieces), endpoint::BlockKind::kLanding));
      local = block.data();
      RRPC_ASSIGN_OR_RETURN(region, endpoint.sink_region_for(block.data(), block.size()));
    }
    blocks.push_back(std::move(block));
    if (region == nullptr) continue;
    for (const endpoint::Descriptor& piece : pieces) {
      segments.push_back({local, region, piece.address, piece.rkey, piece.length_bytes});
      local += piece.length_bytes;
    }
  }
  return segments;
}

}  // namespace rrpc::rpc
