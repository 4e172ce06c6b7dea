// The ready bits that a listener gives to processes with many connections.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memfd.h"
#include "provider/ready_bits.h"
#include "provider/shm/peer_process.h"

namespace rrpc::provider::shm {

// Of one process, which no other is given.
class ProcessBits : public ReadyBits {
 public:
  static Result<std::shared_ptr<ProcessBits>> create();
  int fd() const { return mapping_.fd(); }
  // ReadyPage::kBits: all are in use.
  uint32_t claim();
  void release(uint32_t bit);

 private:
  explicit ProcessBits(SharedMapping mapping)
      : ReadyBits(*reinterpret_cast<ReadyPage*>(mapping.data())), mapping_(std::move(mapping)) {}

  SharedMapping mapping_;
  std::mutex mutex_;
  std::vector<uint32_t> free_;
  uint32_t next_ = 0;
};

class PeerBits {
 public:
  // A connection's, for as long as it lives.
  class Claim {
   public:
    Claim(std::shared_ptr<PeerBits> owner, const PeerProcess& peer);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    // Null where it has none: the process's first few connections cost less without, and memory may be short.
    ProcessBits* bits() const { return bits_.get(); }
    uint32_t bit() const { return bit_; }

   private:
    friend PeerBits;
    const std::shared_ptr<PeerBits> owner_;
    const std::pair<pid_t, uid_t> process_;
    std::shared_ptr<ProcessBits> bits_;
    uint32_t bit_ = 0;
  };

 private:
  struct OfProcess {
    size_t connection_count = 0;
    std::weak_ptr<ProcessBits> bits;  // of the connections that have one
  };
  void enter(Claim& claim);
  void leave(const Claim& claim);

  std::mutex mutex_;
  std::map<std::pair<pid_t, uid_t>, OfProcess> processes_;
};

}  // namespace rrpc::provider::shm
