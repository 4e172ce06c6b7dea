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

// Where even pool memory had to be staged, the copy is what the peer reads; where it was encrypted, the block keeps
// what may be encrypted again.
Status Exposures::add_block(endpoint::Endpoint& endpoint, endpoint::PoolBlock block) {
  endpoint::Buffer buffer{block.data(), block.size(), endpoint::kNoOwner, nullptr, {}};
  endpoint::PoolBlock kept;
  if (endpoint.encrypts())
    buffer.hold = std::make_shared<BlockHold>(std::move(block));  // until it is encrypted
  else
    kept = std::move(block);
  RRPC_RETURN_IF_ERROR(add_range(endpoint, std::move(buffer), provider::kRemoteRead, endpoint::kBodySealPiecesMax));
  if (kept && !items_.back().staged) items_.back().staged = std::move(kept);
  body_last_ = true;
  return {};
}

Status fit_descriptors(endpoint::Endpoint& endpoint, std::span<endpoint::Buffer> buffers) {
  if (endpoint.encrypts()) return {};  // that packs them
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
