// Remote reads and writes cut into chunks, a bounded number in flight, transfers served in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "endpoint/exposure.h"
#include "endpoint/rails.h"
#include "endpoint/registration_cache.h"
#include "endpoint/seal.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

struct TransferSegment {
  std::byte* local = nullptr;
  RegionRef region;  // covers `local`
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  size_t length_bytes = 0;
  SealRef seal = {};        // of a READ: what its bytes are checked against once they are here
  RailKeys rail_keys = {};  // of a READ without a seal: where else it may go
};

struct FinishedTransfer {
  uint64_t cookie = 0;
  provider::WcStatus status = provider::WcStatus::kSuccess;
  provider::Opcode opcode = provider::Opcode::kRead;
  size_t length_bytes = 0;  // in all
  size_t bytes_by_rails = 0;
};

class BulkScheduler {
 public:
  // `window`: chunks in flight at most; `chunk_bytes_max`: no work request is longer.
  BulkScheduler(uint32_t window, size_t chunk_bytes_max);

  // The memory belongs to the transfer until it is reported finished. `cookie` is the caller's, unique.
  void start(uint64_t cookie, provider::Opcode opcode, std::vector<TransferSegment> segments);
  // Posts no more chunks; the transfer still finishes (kFlushed) only when those in flight have.
  void cancel(uint64_t cookie);
  void cancel_all();

  // Long READs are spread over them from now on, a window for each.
  void use_rails(Rails& rails);
  // Posts what the window allows.
  Status pump(provider::QueuePair& qp, uint64_t wr_id_tag);
  void on_completion(uint32_t slot, provider::WcStatus status);
  // Pieces of a transfer with seals that are here and were not checked. It isn't finished before all of it was.
  struct Landed {
    const TransferSegment& segment;
    size_t piece_index = 0;  // of its seal
    size_t piece_count = 0;
  };
  bool has_landed() const { return !landed_.empty(); }
  Landed first_landed() const;
  void first_landed_was_checked(size_t piece_count);
  // They aren't what was sealed: the transfer ends. Its memory is zeros from now on, but for what
  // still lands, and all of it once it is reported finished.
  void refuse_first_landed();
  // Moves out the transfers that ended since the last call.
  std::vector<FinishedTransfer> take_finished();
  bool has_finished() const { return !finished_.empty(); }
  bool idle() const { return transfers_.empty(); }
  // Whether of any transfer nothing has come for so long, as far as the calls of this tell: ask every now and then. A
  // rail that it waits for is given half as long.
  bool stalled(TimeNs now, TimeNs timeout);

 private:
  struct Place {
    size_t segment_index = 0;
    size_t offset_bytes = 0;
  };
  struct Chunk {
    Place place;
    size_t length_bytes = 0;
  };
  struct Transfer {
    provider::Opcode opcode = provider::Opcode::kRead;
    std::vector<TransferSegment> segments;
    Place next;                // to be posted
    std::vector<Chunk> again;  // that a rail has failed
    uint32_t in_flight = 0;
    bool stopped = false;
    bool refused = false;
    size_t bytes_by_rails = 0;
    size_t bytes_landed = 0;      // from the first on: chunks are read in order
    size_t segments_checked = 0;  // against their seals
    size_t pieces_checked = 0;    // of the next
    size_t bytes_checked = 0;     // of the segments that were
    provider::WcStatus status = provider::WcStatus::kSuccess;
    uint64_t chunks_done = 0;
    uint64_t chunks_seen = 0;  // by stalled(), when it saw more last:
    TimeNs seen_at = kNever;
    bool all_posted() const { return stopped || (next.segment_index == segments.size() && again.empty()); }
    bool has_seals() const { return !segments.empty() && segments.front().seal != nullptr; }
    bool to_check() const {
      return status == provider::WcStatus::kSuccess && has_seals() && segments_checked < segments.size();
    }
    size_t pieces_landed() const;  // of those to be checked next, within one segment
    // Enough of them to be worth two threads' meeting, or all that will come.
    bool is_worth_checking() const;
  };

  Place gather_chunk(const Transfer& transfer, const provider::QueuePairLimits& limits);
  // The connection's own queue pair, then the rails.
  static constexpr size_t kOwn = 0;
  static constexpr size_t kNoLane = SIZE_MAX;
  struct Slot {
    uint64_t cookie = 0;
    size_t lane = kNoLane;  // of one that is free
    Chunk chunk;            // of a WRITE from several segments: the length of all
  };
  size_t choose_lane(const Transfer& transfer) const;
  Status post_next(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer, size_t lane);
  Status post(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer, size_t lane,
              const Place& place, uint32_t rkey);
  uint32_t& in_flight_by(size_t lane) { return lane == kOwn ? own_in_flight_ : rails_->reads_in_flight(lane - 1); }
  Status post_chunk(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer);
  bool post_by_rail(uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer, size_t rail);
  Status post_again(provider::QueuePair& qp, uint64_t wr_id_tag, uint64_t cookie, Transfer& transfer);
  bool leave_to_own(const Slot& failed, Transfer& transfer);
  void lose_rails_of(uint64_t cookie);
  void stop(Transfer& transfer);
  void finish_if_ended(uint64_t cookie);
  static void wipe(const Transfer& transfer);

  const uint32_t window_;
  const size_t chunk_bytes_max_;
  Rails* rails_ = nullptr;
  uint32_t own_in_flight_ = 0;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::deque<uint64_t> turn_;    // transfers with chunks to post
  std::deque<uint64_t> landed_;  // transfers to be checked
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<provider::Sge> sges_;  // of the chunk being posted
  std::vector<FinishedTransfer> finished_;
};

}  // namespace rrpc::endpoint
