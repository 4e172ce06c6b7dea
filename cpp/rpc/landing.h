// Where fetched buffers land: pool blocks, or the caller's own memory for one of them; and who may fetch when.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"
#include "rpc/budget.h"
#include "rpc/messages.h"

namespace rrpc::rpc {

using Blocks = std::vector<endpoint::ReceivedBlock>;

// Borrows what is lent, for the buffers of a message in their order: those that have to be fetched have an empty block
// there. Keeps what `blocks` has borrowed before. The buffer `except` is always fetched. True: nothing has to be.
bool borrow_lent(endpoint::Endpoint& endpoint, std::span<const endpoint::Descriptor> descriptors, Blocks& blocks,
                 size_t except = SIZE_MAX);
// The pool memory that these buffers take; those that have a block take none.
size_t landing_bytes(std::span<const endpoint::Descriptor> descriptors, const Blocks& blocks = {});

// The fetches of one connection: first come, first served, as many at a time as keep the path busy, and as the
// connection's share of landing memory allows. What waits is a small message. Of the connection's mutex.
class Landing {
 public:
  explicit Landing(std::shared_ptr<Account> account) : account_(std::move(account)) {}

  // Why so many bytes could never land at once.
  Status check(size_t bytes) const;
  // A fetch may begin now: true, and `charge` has its bytes.
  bool enter(size_t bytes, Charge& charge);
  // One that was admitted is to fetch more, if there is room for that too.
  bool grow(Charge& charge, size_t bytes) { return charge.grow(account_, bytes); }
  // It may begin later: `go` runs in pump() and begins it. Gives a ticket for withdraw(). first: before all that wait.
  uint64_t wait(size_t bytes, std::function<void(Charge, TimeNs)> go, bool first = false);
  void withdraw(uint64_t ticket);
  // A fetch of a call that holds `charged_bytes` begins beyond the first, or one has ended.
  void fetch_begins(size_t charged_bytes) {
    ++active_;
    active_bytes_ += charged_bytes;
  }
  void fetch_ended(size_t charged_bytes) {
    --active_;
    active_bytes_ -= charged_bytes;
  }

  // Whether pump() has something to do.
  bool runnable() const { return !queue_.empty() && may_start() && !account_->waiting(); }
  // Gives how many fetches it began.
  size_t pump(TimeNs now);
  void clear();
  void set_on_granted(std::function<void()> on_granted) { account_->set_on_granted(std::move(on_granted)); }

 private:
  struct Waiting {
    uint64_t ticket = 0;
    size_t bytes = 0;
    std::function<void(Charge, TimeNs)> go;
  };
  bool may_start() const;

  const std::shared_ptr<Account> account_;
  std::deque<Waiting> queue_;
  size_t active_ = 0;
  size_t active_bytes_ = 0;
  uint64_t next_ticket_ = 1;
};

// What the halves of a session take memory from.
struct Shares {
  Landing& landing;
  CountedBytes& queued;
  const std::shared_ptr<Account>& exposed;
};

// The user's own memory for the buffer `index`.
struct OutTarget {
  size_t index = 0;
  std::byte* data = nullptr;
  size_t length_bytes = 0;
  endpoint::RegionRef region;  // null: nothing to fetch, or written by the peer already
};

// Allocates a block for each buffer that has none (an empty one where `outs`, in the order of their indices, take it)
// and gives the segments to fetch: the pieces of a buffer land one behind the other.
inline Result<std::vector<endpoint::TransferSegment>> prepare_landing(endpoint::Endpoint& endpoint,
                                                                      std::span<const endpoint::Descriptor> descriptors,
                                                                      std::span<const OutTarget> outs, Blocks& blocks) {
  std::vector<endpoint::TransferSegment> segments;
  for (size_t i = 0; !descriptors.empty(); ++i) {
    const std::span<const endpoint::Descriptor> pieces = first_buffer(descriptors);
    descriptors = descriptors.subspan(pieces.size());
    std::byte* local = nullptr;
    if (i < blocks.size() && blocks[i]) continue;
    endpoint::RegionRef region;
    endpoint::PoolBlock block;
    if (!outs.empty() && outs.front().index == i) {
      local = outs.front().data;
      region = outs.front().region;
      outs = outs.subspan(1);
    } else {
      RRPC_ASSIGN_OR_RETURN(block, endpoint.allocate(total_bytes(pieces), endpoint::BlockKind::kLanding));
      local = block.data();
      RRPC_ASSIGN_OR_RETURN(region, endpoint.sink_region_for(block.data(), block.size()));
    }
    if (i < blocks.size())
      blocks[i] = std::move(block);
    else
      blocks.emplace_back(std::move(block));
    if (region == nullptr) continue;
    for (const endpoint::Descriptor& piece : pieces) {
      segments.push_back({local, region, piece.address, piece.rkey, piece.length_bytes, piece.seal, piece.rail_keys});
      local += piece.length_bytes;
    }
  }
  return segments;
}

}  // namespace rrpc::rpc
