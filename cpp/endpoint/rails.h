// Rails: further queue pairs to the same peer, each over a port of its own. They carry no messages. READs of long
// ranges are spread over them and the connection's own queue pair, so that one array goes over several ports. (NCCL and
// UCX call them so.)
//
// A range is opened on each rail as well, with a key of its own. A rail that is lost takes nothing with it: READs that
// it fails are made again by the connection's own queue pair, whose end alone is the connection's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "endpoint/exposure.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

constexpr size_t kStripedBytesMin = 2 << 20;  // ranges shorter than this go by the connection's own queue pair
constexpr uint32_t kRailMagic = 0x4c524152;   // "RARL"
constexpr uint16_t kRailVersion = 1;
constexpr size_t kRailTokenBytes = 16;
using RailToken = std::array<std::byte, kRailTokenBytes>;

// The private data with which a rail is offered, and of the answer.
struct RailOffer {
  uint32_t magic = kRailMagic;
  uint16_t version = kRailVersion;
  uint16_t rail = 0;  // which of the connection's, from 0 on
  RailToken token{};  // the server's HELLO has it: whose rail this is to be
};
static_assert(sizeof(RailOffer) == 24);

// Nothing: what was offered is no rail.
std::optional<RailOffer> read_rail_offer(Bytes private_data);

// The completions of the connection and of its rails.
class JoinedQueue final : public provider::CompletionQueue {
 public:
  // reserve() first: then add() doesn't fail.
  void reserve() { queues_.reserve(1 + kRailsMax); }
  void add(std::unique_ptr<provider::CompletionQueue> queue) { queues_.push_back(std::move(queue)); }
  std::unique_ptr<provider::CompletionQueue> take_out(const provider::CompletionQueue* queue);

  size_t poll(std::span<provider::Completion> out) override;
  void arm() override;
  void append_wait_handles(std::vector<provider::WaitHandle>& out) const override;
  bool handles_tell_all() const override;
  bool polls_cheaply() const override;
  bool moved_bytes() const override;
  bool disarm() override;
  void look_at_wait_handles() override;
  bool lingering() const override;

 private:
  std::vector<std::unique_ptr<provider::CompletionQueue>> queues_;
  size_t turn_ = 0;
};

struct RailQueues {
  std::unique_ptr<provider::CompletionQueue> completions;
  std::unique_ptr<provider::QueuePair> queue_pair;  // goes first
};

enum class RailState : uint8_t { kNone, kConnecting, kCarries, kLost };

// Used under the rules of the endpoint that has them.
class Rails {
 public:
  // `joined` polls their queues, and outlives them. `own`: the connection's.
  Rails(JoinedQueue& joined, const provider::QueuePair& own) : joined_(joined), own_(own) {}
  ~Rails();
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;

  // Connects or accepts what is in kInit, in place of the one before it. FailedPrecondition while that one is at work
  // or has memory open: it is ended then, so that a later try will do; and where the adapter opens memory in another
  // way than the connection's own. `queues` is what was replaced afterwards, or what was refused: to be destroyed
  // without the connection's mutex, for that may wait for the peer. It is lost if it isn't connected by the deadline.
  Status add(size_t index, RailQueues& queues, const RailToken& token, TimeNs deadline);
  bool may_be_replaced(size_t index) const { return !in_use(rails_[index]); }
  TimeNs next_deadline() const;
  void expire(TimeNs now);
  RailState state(size_t index);
  // Whether it may be given READs and exposures.
  bool carries(size_t index) { return state(index) == RailState::kCarries; }
  provider::QueuePair& queue_pair(size_t index) { return *rails_[index].qp; }
  // Why it doesn't; empty: it does.
  std::string why_not(size_t index);
  void lose(size_t index, const std::string& reason);
  void disconnect(const std::string& reason);
  // Of all, as the connection's own is destroyed.
  void destroy();
  bool hold_device() const;
  void release_device();

  // READs that are on their way, by rail.
  uint32_t& reads_in_flight(size_t index) { return rails_[index].reads_in_flight; }

  // Opens a range, which is open to the peer already, on each rail that carries. One that can't be opened has no key.
  void expose(const provider::MemoryRegion& region, const std::byte* address, size_t length_bytes, RailKeys& keys);
  // False: it is under way, as QueuePair::revoke() has it.
  bool revoke(const RailKeys& keys);
  bool revoking(const RailKeys& keys) const;
  // It is over, for good: a rail may be replaced when this was called for all that were opened on it.
  void closed(const RailKeys& keys);

 private:
  struct Rail {
    std::unique_ptr<provider::QueuePair> qp;  // null: there was none
    const provider::CompletionQueue* cq = nullptr;
    uint32_t reads_in_flight = 0;
    uint32_t exposed = 0;
    bool met = false;          // the peer has answered as a rail does
    TimeNs deadline = kNever;  // while it is being connected
    std::string lost;          // why; empty: it isn't
  };
  static bool in_use(const Rail& rail) { return rail.reads_in_flight > 0 || rail.exposed > 0; }

  JoinedQueue& joined_;
  const provider::QueuePair& own_;
  std::array<Rail, kRailsMax> rails_;
};

}  // namespace rrpc::endpoint
