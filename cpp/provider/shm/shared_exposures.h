// What this side has opened to its peer, as the owner keeps it: the table itself lies in the control segment.
#pragma once

#include <deque>
#include <vector>

#include "provider/provider.h"
#include "provider/shm/control_segment.h"
#include "provider/shm/socket_channel.h"

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
  // Waits, if the peer is writing through this very key, until its chunk is done or it is gone.
  void close(uint32_t rkey, const SocketChannel& channel);
  void close_all(const SocketChannel& channel);
  bool any_open_in(uint32_t slab_id) const;

 private:
  // Keys come back late: an index rests until this many others have been used.
  static constexpr size_t kReuseDistance = 1024;

  struct Slot {
    uint32_t generation = 0;
    uint32_t slab_id = 0;
    bool open = false;
    bool writable = false;
  };

  Result<uint32_t> take_index();
  void close_index(uint32_t index);
  void await_writer(uint32_t rkey, const SocketChannel& channel) const;

  const ControlSegment& control_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
};

}  // namespace rrpc::provider::shm
