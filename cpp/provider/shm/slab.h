// Shared files: those of ours that a peer has been given, and those of a peer that we have mapped.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/memfd.h"
#include "provider/provider.h"
#include "provider/shm/socket_channel.h"
#include "provider/shm/wire.h"

namespace rrpc::provider::shm {

constexpr size_t kSlabsPerPeerMax = 64;  // of which a peer learns at a time

// How much address space the files of one peer may take. Files are sparse; none is larger than four times what the host
// has for it, as the extents of a pool grow.
uint64_t shared_bytes_per_peer_max();

// Sealed files of other kinds (huge pages without a reservation) can raise SIGBUS in whoever touches them.
Status check_plain_shared_memory(int fd);

// A peer's shared file as this process sees it. One mapping serves every connection that is given the file.
class Slab {
 public:
  explicit Slab(SharedMapping mapping) : mapping_(std::move(mapping)) {}
  // Unmapping what was read takes milliseconds for each GB: a poller leaves it to the helper thread.
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  std::byte* data() const { return mapping_.data(); }
  size_t size() const { return mapping_.size(); }

 private:
  SharedMapping mapping_;
};

class SlabCache {
 public:
  // ResourceExhausted when all peers together share more than the process may map.
  Result<std::shared_ptr<Slab>> adopt(UniqueFd fd, size_t length_bytes, bool writable);

 private:
  using Key = std::tuple<uint64_t, uint64_t, bool>;  // device, inode, writable
  struct Mapped {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<Slab>> slabs;
    uint64_t bytes = 0;
  };
  static void forget(Mapped& mapped, const Key& key, const Slab& slab);

  const std::shared_ptr<Mapped> mapped_ = std::make_shared<Mapped>();
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
  const Entry* find(uint32_t id) const { return last_ != nullptr && last_id_ == id ? last_ : find_other(id); }
  void clear();

 private:
  using Entries = std::unordered_map<uint32_t, Entry>;

  const Entry* find_other(uint32_t id) const;

  Entries entries_;
  uint64_t mapped_bytes_ = 0;
  mutable uint32_t last_id_ = 0;
  mutable const Entry* last_ = nullptr;
};

using FileKey = std::pair<uint64_t, uint64_t>;  // device, inode

// Numbers for our own shared files. A file has one while any range of it is registered.
class SlabRegistry {
 public:
  uint32_t add(const FileKey& file);
  // The counterpart of add(): with the last, the number has ended.
  void retire(uint32_t id);
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  bool live(uint32_t id);

 private:
  struct File {
    FileKey key;
    size_t range_count = 0;
  };
  std::mutex mutex_;
  std::unordered_map<uint32_t, File> live_;
  std::map<FileKey, uint32_t> ids_;
  uint32_t next_ = 1;
  std::atomic<uint64_t> epoch_{0};
};

class ShmRegion : public MemoryRegion {
 public:
  ShmRegion(MemoryRange range, uint32_t lkey) : MemoryRegion(range, lkey) {}
  // A range of a shared file.
  ShmRegion(MemoryRange range, uint32_t lkey, std::shared_ptr<SlabRegistry> registry, const FileKey& file,
            uint64_t file_bytes);
  ~ShmRegion() override;
  bool shared() const { return slab_id_ != 0; }
  uint32_t slab_id() const { return slab_id_; }
  // Of the file as the peer maps it.
  const std::byte* file_address() const { return range().address - range().file_offset; }
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t file_offset(const std::byte* address) const { return static_cast<uint64_t>(address - file_address()); }

 private:
  std::shared_ptr<SlabRegistry> registry_;
  uint32_t slab_id_ = 0;
  uint64_t file_bytes_ = 0;
};

// Which of our files one peer has been given.
class SharedWithPeer {
 public:
  // Whether the peer may still be led to a file: an exposure is open in it.
  using InUse = std::function<bool(uint32_t id)>;

  explicit SharedWithPeer(std::shared_ptr<SlabRegistry> registry) : registry_(std::move(registry)) {}

  // The file that was announced last is known until it is dropped.
  bool knows(const ShmRegion& region) const { return region.slab_id() == last_; }
  // Announces the region's file, unless the peer has it already. Of many, the one used longest ago is dropped.
  Status share(const ShmRegion& region, SocketChannel& channel, const InUse& in_use);
  // Some file of the device has ended since the last drop_retired().
  bool outdated() const { return registry_->epoch() != epoch_seen_; }
  Status drop_retired(SocketChannel& channel);

 private:
  struct Known {
    uint64_t used_at = 0;
    bool receives = false;  // the peer writes there whenever it likes
  };

  Status make_room(SocketChannel& channel, const InUse& in_use);

  std::shared_ptr<SlabRegistry> registry_;
  std::unordered_map<uint32_t, Known> known_;
  uint32_t last_ = 0;
  uint64_t clock_ = 0;
  uint64_t epoch_seen_ = 0;
};

}  // namespace rrpc::provider::shm
