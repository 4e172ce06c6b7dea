#include "provider/shm/slab.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

namespace rrpc::provider::shm {

namespace {
constexpr size_t kHugePageBytes = 2 << 20;
}  // namespace

Status check_plain_shared_memory(int fd) {
  struct statfs system{};
  if (fstatfs(fd, &system) != 0) return Status::from_errno(errno, "fstatfs of the peer's shared memory");
  if (system.f_type == TMPFS_MAGIC) return {};
  return Status::protocol_error("the peer's descriptor is not plain shared memory");
}

Result<std::shared_ptr<Slab>> SlabCache::adopt(UniqueFd fd, size_t length_bytes, bool writable) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Status::from_errno(errno, "fstat of the peer's shared memory");
  RRPC_RETURN_IF_ERROR(check_plain_shared_memory(fd.get()));

  std::lock_guard lock(mutex_);
  std::erase_if(slabs_, [](const auto& item) { return item.second.expired(); });
  const Key key(info.st_dev, info.st_ino, writable);
  if (const auto found = slabs_.find(key); found != slabs_.end()) {
    std::shared_ptr<Slab> slab = found->second.lock();
    if (slab && slab->size() == length_bytes) return slab;
  }
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::adopt(std::move(fd), length_bytes, writable));
  mapping.close_fd();
  if (length_bytes >= kHugePageBytes) madvise(mapping.data(), length_bytes, MADV_HUGEPAGE);
  auto slab = std::make_shared<Slab>(std::move(mapping));
  slabs_[key] = slab;
  return slab;
}

Status PeerSlabs::add(SlabCache& cache, const SlabNotice& notice, UniqueFd fd) {
  if (entries_.contains(notice.id))
    return Status::protocol_error("the peer shares slab " + std::to_string(notice.id) + " twice");
  if (entries_.size() >= kSlabsPerPeerMax)
    return Status::protocol_error("the peer shares more than " + std::to_string(kSlabsPerPeerMax) + " slabs");
  RRPC_ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab,
                        cache.adopt(std::move(fd), notice.length_bytes, notice.writable == 1));
  entries_.emplace(notice.id, Entry{std::move(slab), notice.address, notice.writable == 1});
  return {};
}

void PeerSlabs::drop(uint32_t id) {
  last_ = nullptr;
  entries_.erase(id);
}

void PeerSlabs::clear() {
  last_ = nullptr;
  entries_.clear();
}

const PeerSlabs::Entry* PeerSlabs::find(uint32_t id) const {
  if (last_ != nullptr && last_id_ == id) return last_;
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  last_id_ = id;
  last_ = &found->second;  // stable: the map's nodes don't move
  return last_;
}

uint32_t SlabRegistry::add() {
  std::lock_guard lock(mutex_);
  while (next_ == 0 || live_.contains(next_)) ++next_;
  live_.insert(next_);
  return next_++;
}

void SlabRegistry::retire(uint32_t id) {
  std::lock_guard lock(mutex_);
  live_.erase(id);
  epoch_.fetch_add(1, std::memory_order_release);
}

bool SlabRegistry::live(uint32_t id) {
  std::lock_guard lock(mutex_);
  return live_.contains(id);
}

ShmRegion::ShmRegion(MemoryRange range, uint32_t lkey, std::shared_ptr<SlabRegistry> registry)
    : MemoryRegion(range, lkey), registry_(std::move(registry)), slab_id_(range.fd >= 0 ? registry_->add() : 0) {}

ShmRegion::~ShmRegion() {
  if (shared()) registry_->retire(slab_id_);
}

Status SharedWithPeer::share(const ShmRegion& region, SocketChannel& channel, bool may_wait) {
  if (knows(region)) return {};
  if (ids_.size() >= kSlabsPerPeerMax) {
    RRPC_RETURN_IF_ERROR(drop_retired(channel));
    if (ids_.size() >= kSlabsPerPeerMax)
      return resource_exhausted("more than " + std::to_string(kSlabsPerPeerMax) + " shared slabs on one connection");
  }
  const MemoryRange& range = region.range();
  const Frame frame = encode_slab({region.slab_id(), range.peers_may_write ? 1u : 0u,
                                   reinterpret_cast<uint64_t>(range.address), range.length_bytes});
  RRPC_RETURN_IF_ERROR(may_wait ? channel.send(frame, range.fd) : channel.send_now(frame, range.fd));
  ids_.insert(region.slab_id());
  last_ = region.slab_id();
  return {};
}

Status SharedWithPeer::drop_retired(SocketChannel& channel) {
  const uint64_t epoch = registry_->epoch();
  if (epoch == epoch_seen_) return {};
  epoch_seen_ = epoch;
  for (auto id = ids_.begin(); id != ids_.end();) {
    if (registry_->live(*id)) {
      ++id;
      continue;
    }
    RRPC_RETURN_IF_ERROR(channel.send(encode_drop_slab(*id)));
    if (last_ == *id) last_ = 0;
    id = ids_.erase(id);
  }
  return {};
}

}  // namespace rrpc::provider::shm
