// What this side has opened to its peer, as the owner keeps it: the table itself lies in the control segment.
#pragma once

#include <deque>
#include <vector>

#include "provider/provider.h"
#include "provider/shm/control_segment.h"

namespace rrpc::provider::shm {

class SharedExposures {
 public:
  struct Range {
    uint64_t address = 0;
    uint64_t length_bytes = 0;
    uint32_t rights = 0;  // Access | ExposureKind
    uint32_t slab_id = 0;
  };

  explicit SharedExposures(const ControlSegment& control) : control_(control) {}

  Result<uint32_t> open(const Range& range);
  // False: the peer says that it is in the middle of a write through this key, see writing(). Never waits.
  bool close(uint32_t rkey);
  void close_all();
  bool any_open_in(uint32_t slab_id) const;
  // close() for a range with kLend among its rights, open or closed already. True: the peer has it, and its entry stays
  // as it is until the peer gives it back.
  bool close_lent(uint32_t rkey);
  // Whether another range may be lent: the peer keeps few enough.
  bool may_lend() const { return kept_.size() < kKeptMax; }
  // Whether the peer may still be writing through this closed key. A write begins with a look at the entry, which is
  // closed: once it is over, it is over for good. One that stays for longer than kWriterPatience is a lie: a chunk
  // takes some 100 us.
  bool writing(uint32_t rkey) const;
  bool writing() const { return writer_rkey_ != 0 && writing(writer_rkey_); }

 private:
  static constexpr TimeNs kWriterPatience = kSecond;
  // Keys come back late: an index rests until this many others have been used.
  static constexpr size_t kReuseDistance = 1024;

  // Ranges that the peer reads in place and hasn't given back. Each takes an entry of the table.
  static constexpr size_t kKeptMax = 16384;

  struct Slot {
    uint32_t generation = 0;
    uint32_t slab_id = 0;
    bool open = false;
    bool writable = false;
    bool lent = false;  // its word in the table counts until close_lent()
  };

  Result<uint32_t> take_index();
  void close_index(uint32_t index);
  void reclaim_kept();
  bool note_writer(uint32_t rkey);

  const ControlSegment& control_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
  std::deque<uint32_t> kept_;  // entries whose ranges the peer reads in place
  uint32_t writer_rkey_ = 0;   // the peer was writing through it when it was closed
  TimeNs writer_deadline_ = 0;
};

}  // namespace rrpc::provider::shm
