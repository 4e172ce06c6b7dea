// Shared files: those of ours that a peer has been given, and those of a peer that we have mapped.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/memfd.h"
#include "provider/provider.h"
#include "provider/shm/socket_channel.h"
#include "provider/shm/wire.h"

namespace rrpc::provider::shm {

constexpr size_t kSlabsPerPeerMax = 1024;

// Sealed files of other kinds (huge pages without a reservation) can raise SIGBUS in whoever touches them.
Status check_plain_shared_memory(int fd);

// A peer's shared file as this process sees it. One mapping serves every connection that is given the file.
class Slab {
 public:
  explicit Slab(SharedMapping mapping) : mapping_(std::move(mapping)) {}
  std::byte* data() const { return mapping_.data(); }
  size_t size() const { return mapping_.size(); }

 private:
  SharedMapping mapping_;
};

class SlabCache {
 public:
  Result<std::shared_ptr<Slab>> adopt(UniqueFd fd, size_t length_bytes, bool writable);

 private:
  using Key = std::tuple<uint64_t, uint64_t, bool>;  // device, inode, writable
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Slab>> slabs_;
};

// What one peer has shared with us, by the number that it gave.
class PeerSlabs {
 public:
  struct Entry {
    std::shared_ptr<Slab> slab;
    uint64_t owner_address = 0;
    bool writable = false;

    std::byte* local(uint64_t offset_bytes) const { return slab->data() + offset_bytes; }
    bool contains(uint64_t offset_bytes, uint64_t length_bytes) const {
      return offset_bytes <= slab->size() && length_bytes <= slab->size() - offset_bytes;
    }
  };

  Status add(SlabCache& cache, const SlabNotice& notice, UniqueFd fd);
  void drop(uint32_t id);
  const Entry* find(uint32_t id) const;
  void clear();

 private:
  std::unordered_map<uint32_t, Entry> entries_;
  mutable uint32_t last_id_ = 0;
  mutable const Entry* last_ = nullptr;
};

// Numbers for our own shared files, and which of them have ended since.
class SlabRegistry {
 public:
  uint32_t add();
  void retire(uint32_t id);
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  bool live(uint32_t id);

 private:
  std::mutex mutex_;
  std::unordered_set<uint32_t> live_;
  uint32_t next_ = 1;
  std::atomic<uint64_t> epoch_{0};
};

class ShmRegion : public MemoryRegion {
 public:
  ShmRegion(MemoryRange range, uint32_t lkey, std::shared_ptr<SlabRegistry> registry);
  ~ShmRegion() override;
  bool shared() const { return slab_id_ != 0; }
  uint32_t slab_id() const { return slab_id_; }

 private:
  std::shared_ptr<SlabRegistry> registry_;
  uint32_t slab_id_ = 0;
};

// Which of our files one peer has been given.
class SharedWithPeer {
 public:
  explicit SharedWithPeer(std::shared_ptr<SlabRegistry> registry) : registry_(std::move(registry)) {}

  // At set-up the notice may wait for room in the socket: nothing refers to it before READY, which waits behind.
  Status share(const ShmRegion& region, SocketChannel& channel, bool may_wait);
  bool knows(const ShmRegion& region) const { return region.slab_id() == last_ || ids_.contains(region.slab_id()); }
  // Some file of the device has ended since the last drop_retired().
  bool outdated() const { return registry_->epoch() != epoch_seen_; }
  Status drop_retired(SocketChannel& channel);

 private:
  std::shared_ptr<SlabRegistry> registry_;
  std::unordered_set<uint32_t> ids_;
  uint32_t last_ = 0;
  uint64_t epoch_seen_ = 0;
};

}  // namespace rrpc::provider::shm
