#include "provider/shm/slab.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/helper_thread.h"
#include "provider/shm/fork_guard.h"

namespace rrpc::provider::shm {

namespace {
constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kUnmappedBehindBytesMin = 64 << 20;      // about a millisecond, if all of it was read
constexpr uint64_t kMappedBytesMax = uint64_t{32} << 40;  // a quarter of what a process can address
constexpr uint64_t kSharedBytesMin = uint64_t{64} << 30;
}  // namespace

uint64_t shared_bytes_per_peer_max() {
  static const uint64_t most = std::max(kSharedBytesMin, 4 * static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                                             static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  return most;
}

Status check_plain_shared_memory(int fd) {
  struct statfs system{};
  if (fstatfs(fd, &system) != 0) return Status::from_errno(errno, "fstatfs of the peer's shared memory");
  if (system.f_type == TMPFS_MAGIC) return {};
  return Status::protocol_error("the peer's descriptor is not plain shared memory");
}

Slab::~Slab() {
  if (mapping_.size() < kUnmappedBehindBytesMin) return;
  const auto mapping = std::make_shared<SharedMapping>(std::move(mapping_));
  (void)run_behind(Behind::kMemory, [mapping] {});  // else here, with the last reference
}

Result<std::shared_ptr<Slab>> SlabCache::adopt(UniqueFd fd, size_t length_bytes, bool writable) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Status::from_errno(errno, "fstat of the peer's shared memory");
  RRPC_RETURN_IF_ERROR(check_plain_shared_memory(fd.get()));

  const Key key(info.st_dev, info.st_ino, writable);
  std::shared_ptr<Slab> known, slab;  // let go of without the mutex, which that takes
  std::lock_guard lock(mapped_->mutex);
  if (const auto found = mapped_->slabs.find(key); found != mapped_->slabs.end()) {
    known = found->second.lock();
    if (known && known->size() == length_bytes) return known;
  }
  if (length_bytes > kMappedBytesMax - mapped_->bytes)
    return resource_exhausted("the peers of this process share more than " + std::to_string(kMappedBytesMax) +
                              " bytes of memory with it");
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::adopt(std::move(fd), length_bytes, writable));
  mapping.close_fd();
  if (length_bytes >= kHugePageBytes) madvise(mapping.data(), length_bytes, MADV_HUGEPAGE);
  auto made = std::make_unique<Slab>(std::move(mapping));
  mapped_->bytes += length_bytes;
  slab = std::shared_ptr<Slab>(made.release(), [mapped = mapped_, key, made_in = fork_generation()](Slab* last) {
    if (made_in == fork_generation()) forget(*mapped, key, *last);  // a child's mutex may be held by nobody's thread
    delete last;
  });
  mapped_->slabs[key] = slab;
  return slab;
}

// The key may have another mapping by now.
void SlabCache::forget(Mapped& mapped, const Key& key, const Slab& slab) {
  std::lock_guard lock(mapped.mutex);
  mapped.bytes -= slab.size();
  const auto found = mapped.slabs.find(key);
  if (found != mapped.slabs.end() && found->second.expired()) mapped.slabs.erase(found);
}

Status PeerSlabs::add(SlabCache& cache, const SlabNotice& notice, UniqueFd fd) {
  if (entries_.contains(notice.id))
    return Status::protocol_error("the peer shares slab " + std::to_string(notice.id) + " twice");
  if (entries_.size() >= kSlabsPerPeerMax)
    return Status::protocol_error("the peer shares more than " + std::to_string(kSlabsPerPeerMax) + " slabs");
  if (notice.length_bytes > shared_bytes_per_peer_max() - mapped_bytes_)
    return Status::protocol_error("the peer shares more than " + std::to_string(shared_bytes_per_peer_max()) +
                                  " bytes of memory");
  RRPC_ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab,
                        cache.adopt(std::move(fd), notice.length_bytes, notice.writable == 1));
  mapped_bytes_ += notice.length_bytes;
  entries_.emplace(notice.id, Entry{std::move(slab), notice.address, notice.writable == 1});
  return {};
}

void PeerSlabs::drop(uint32_t id) {
  last_ = nullptr;
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  mapped_bytes_ -= entry->second.slab->size();
  entries_.erase(entry);
}

// By a poller, since the connection has failed: unmapping is the helper thread's.
void PeerSlabs::clear() {
  last_ = nullptr;
  if (entries_.empty()) return;
  const auto unmapped = std::make_shared<Entries>(std::exchange(entries_, {}));
  (void)run_behind(Behind::kMemory, [unmapped] {});  // else here, with the last reference
}

const PeerSlabs::Entry* PeerSlabs::find_other(uint32_t id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  last_id_ = id;
  last_ = &found->second;  // stable: the map's nodes don't move
  return last_;
}

uint32_t SlabRegistry::add(const FileKey& file) {
  std::lock_guard lock(mutex_);
  uint32_t& id = ids_[file];
  if (id == 0) {
    while (next_ == 0 || live_.contains(next_)) ++next_;
    id = next_++;
    live_[id].key = file;
  }
  ++live_[id].range_count;
  return id;
}

void SlabRegistry::retire(uint32_t id) {
  std::lock_guard lock(mutex_);
  const auto file = live_.find(id);
  if (--file->second.range_count > 0) return;
  ids_.erase(file->second.key);
  live_.erase(file);
  epoch_.fetch_add(1, std::memory_order_release);
}

bool SlabRegistry::live(uint32_t id) {
  std::lock_guard lock(mutex_);
  return live_.contains(id);
}

ShmRegion::ShmRegion(MemoryRange range, uint32_t lkey, std::shared_ptr<SlabRegistry> registry, const FileKey& file,
                     uint64_t file_bytes)
    : MemoryRegion(range, lkey),
      registry_(std::move(registry)),
      slab_id_(registry_->add(file)),
      file_bytes_(file_bytes) {}

ShmRegion::~ShmRegion() {
  if (shared()) registry_->retire(slab_id_);
}

Status SharedWithPeer::share(const ShmRegion& region, SocketChannel& channel, const InUse& in_use) {
  auto known = known_.find(region.slab_id());
  if (known == known_.end()) {
    RRPC_RETURN_IF_ERROR(make_room(channel, in_use));
    const SlabNotice notice{region.slab_id(), region.range().peers_may_write ? 1u : 0u,
                            reinterpret_cast<uint64_t>(region.file_address()), region.file_bytes()};
    RRPC_RETURN_IF_ERROR(channel.send(encode_slab(notice), region.range().fd));
    known = known_.emplace(region.slab_id(), Known{0, region.range().peers_may_write}).first;
  }
  known->second.used_at = ++clock_;
  last_ = region.slab_id();
  return {};
}

Status SharedWithPeer::make_room(SocketChannel& channel, const InUse& in_use) {
  if (known_.size() < kSlabsPerPeerMax) return {};
  RRPC_RETURN_IF_ERROR(drop_retired(channel));
  if (known_.size() < kSlabsPerPeerMax) return {};
  auto oldest = known_.end();
  for (auto known = known_.begin(); known != known_.end(); ++known) {
    if (known->second.receives || in_use(known->first)) continue;
    if (oldest == known_.end() || known->second.used_at < oldest->second.used_at) oldest = known;
  }
  if (oldest == known_.end())
    return resource_exhausted("more than " + std::to_string(kSlabsPerPeerMax) +
                              " files of shared memory are in use on one connection");
  if (last_ == oldest->first) last_ = 0;
  const Frame frame = encode_drop_slab(oldest->first);
  known_.erase(oldest);
  return channel.send(frame);
}

Status SharedWithPeer::drop_retired(SocketChannel& channel) {
  const uint64_t epoch = registry_->epoch();
  if (epoch == epoch_seen_) return {};
  epoch_seen_ = epoch;
  for (auto known = known_.begin(); known != known_.end();) {
    if (registry_->live(known->first)) {
      ++known;
      continue;
    }
    RRPC_RETURN_IF_ERROR(channel.send(encode_drop_slab(known->first)));
    if (last_ == known->first) last_ = 0;
    known = known_.erase(known);
  }
  return {};
}

}  // namespace rrpc::provider::shm
