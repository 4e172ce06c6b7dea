// Memory opened to one peer for one call, and what keeps it alive meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "endpoint/pool.h"
#include "endpoint/registration_cache.h"
#include "endpoint/seal.h"

namespace rrpc::endpoint {

// Whatever owns a buffer (a Python buffer export, say). Its destructor may run on any thread and must
// not block.
class Hold {
 public:
  virtual ~Hold() = default;
};

// One range of memory, or several that stand for one value: those then are `pieces`, in order, and `data` is null.
struct Buffer {
  std::byte* data = nullptr;
  size_t length_bytes = 0;  // in all
  uint64_t owner_id = kNoOwner;
  std::shared_ptr<Hold> hold;  // shared by the exposures of the pieces; by a call and the exposure of its out= memory
  std::vector<MutableBytes> pieces;
  bool lend = false;  // the peer may read it in place, and keep it for as long as it likes
  size_t range_count() const { return pieces.empty() ? 1 : pieces.size(); }
};

// Of a connection, beside its own queue pair: those of four ports.
constexpr size_t kRailsMax = 3;
// By rail; 0: the range isn't open there.
using RailKeys = std::array<uint32_t, kRailsMax>;
constexpr size_t kRailKeysWireBytes = 4 * kRailsMax;
static_assert(sizeof(RailKeys) == kRailKeysWireBytes);

// What a message says of exposed memory.
struct Descriptor {
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  uint32_t rkey = 0;
  bool continues = false;   // the next descriptor is the next piece of the same buffer
  bool lent = false;        // the receiver may read the range in place
  SealRef seal = {};        // stands behind the descriptor; in every one of a protected connection
  RailKeys rail_keys = {};  // stand behind it, unless all are 0
  bool has_rails() const { return rail_keys != RailKeys(); }
};
constexpr size_t kDescriptorWireBytes = 20;

// What a message's receiver is going to READ first (provider::WorkRequest::pushes).
using Pushes = std::span<const provider::RemoteRange>;

// Pool memory that one peer alone is given files of.
struct PeerPool {
  explicit PeerPool(provider::Device& device) : pool(kOtherUserBytesMax), registrations(device, pool, 0) {}
  ~PeerPool() { pool.trim(); }  // the process counts its pages, too
  Pool pool;
  RegistrationCache registrations;
};

class LendCharge;

struct Exposure {
  Exposure();
  Exposure(Exposure&&) noexcept;
  Exposure& operator=(Exposure&&) noexcept;
  ~Exposure();

  Descriptor descriptor;
  Buffer buffer;
  std::shared_ptr<PeerPool> lender;  // of `staged`, where that isn't the process's pool
  PoolBlock staged;                  // holds the bytes instead of `buffer` where the peer can't reach that, or
                                     // encrypted ones
  RegionRef region;
  std::unique_ptr<LendCharge> lent;  // of a range that is lent
};

}  // namespace rrpc::endpoint
