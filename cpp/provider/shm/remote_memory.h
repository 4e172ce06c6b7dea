// The peer's exposed memory, as READ and WRITE reach it: through its mapped files, or by process_vm_readv/writev.
#pragma once

#include <optional>

#include "provider/shm/control_segment.h"
#include "provider/shm/gather.h"
#include "provider/shm/slab.h"

namespace rrpc::provider::shm {

// What an exposure permits, as found in the owner's table.
struct Grant {
  ExposureKind kind = kMapped;
  uint32_t slab_id = 0;
};

class RemoteMemory {
 public:
  RemoteMemory(const ControlSegment& peer, const PeerSlabs& slabs) : peer_(peer), slabs_(slabs) {}

  std::optional<Grant> find(uint32_t rkey, uint64_t address, uint64_t length_bytes, Access wanted) const;
  bool still_open(uint32_t rkey) const;

  enum class Copied { kAll, kRefused, kPeerGone, kUnknownSlab };
  // `split`: by two threads.
  Copied read(const Grant& grant, pid_t pid, uint64_t address, uint64_t count, SgeCursor& to, bool split) const;
  Copied write(const Grant& grant, pid_t pid, uint64_t address, uint64_t count, SgeCursor& from, bool split) const;
  // Where a mapped grant's bytes are in this process.
  std::byte* locate(const Grant& grant, uint64_t address, uint64_t count, bool writable, Copied& failure) const;

  const ControlSegment& peer_;
  const PeerSlabs& slabs_;
};

// Whether the bytes at `address` of process `pid` are `expected`: proof that we may read it and that it is the peer.
bool probe_memory(pid_t pid, uint64_t address, Bytes expected);

}  // namespace rrpc::provider::shm
