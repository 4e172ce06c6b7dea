#include "rpc/exposures.h"

#include <cstring>
#include <memory>

namespace rrpc::rpc {
namespace {

class BlockHold : public endpoint::Hold {
 public:
  explicit BlockHold(endpoint::PoolBlock block) : block_(std::move(block)) {}

 private:
  endpoint::PoolBlock block_;
};

Status pack(endpoint::Endpoint& endpoint, endpoint::Buffer& buffer) {
  RRPC_ASSIGN_OR_RETURN(auto block, endpoint.allocate(buffer.length_bytes, endpoint::BlockKind::kShared));
  std::byte* const data = block.data();
  std::byte* target = data;
  for (const MutableBytes piece : buffer.pieces) {
    if (!piece.empty()) std::memcpy(target, piece.data(), piece.size());
    target += piece.size();
  }
  endpoint.tally(&endpoint::Counters::copies);
  endpoint.tally(&endpoint::Counters::bytes_copied, static_cast<int64_t>(buffer.length_bytes));
  buffer = {data, buffer.length_bytes, endpoint::kNoOwner, std::make_shared<BlockHold>(std::move(block)), {}};
  return {};
}

}  // namespace

Status fit_descriptors(endpoint::Endpoint& endpoint, std::span<endpoint::Buffer> buffers) {
  size_t count = 0;
  for (const endpoint::Buffer& buffer : buffers) count += buffer.range_count();
  for (endpoint::Buffer& buffer : buffers) {
    if (count <= endpoint.descriptors_max()) break;
    if (buffer.pieces.empty()) continue;
    count -= buffer.range_count() - 1;
    RRPC_RETURN_IF_ERROR(pack(endpoint, buffer));
  }
  return {};
}

}  // namespace rrpc::rpc
