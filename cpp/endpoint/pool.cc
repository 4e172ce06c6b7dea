#include "endpoint/pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

#include "endpoint/counters.h"

namespace rrpc::endpoint {
namespace {

constexpr size_t kBlockBytesMin = 4096;
constexpr size_t kCarvedBlockBytesMax = 128 << 10;  // smaller blocks share a slab, larger ones have their own
constexpr size_t kCarvedSlabBytes = 2 << 20;
constexpr size_t kHugePageBytes = 2 << 20;

// Four classes to a doubling: at most a quarter of a block is slack.
uint32_t size_class_for(size_t length_bytes) {
  const size_t length = std::max(length_bytes, kBlockBytesMin);
  const uint32_t exponent =
      static_cast<uint32_t>(std::bit_width(length - 1)) - 1;  // 2^exponent < length <= 2^(exponent+1)
  const size_t quarter = (size_t{1} << exponent) / 4;
  const size_t steps = (length - (size_t{1} << exponent) + quarter - 1) / quarter;
  return exponent * 4 + static_cast<uint32_t>(steps);
}

size_t size_class_bytes(uint32_t size_class) {
  const uint32_t exponent = (size_class - 1) / 4;
  const size_t steps = size_class - exponent * 4;
  const size_t bytes = (size_t{1} << exponent) + steps * ((size_t{1} << exponent) / 4);
  return (bytes + kBlockBytesMin - 1) & ~(kBlockBytesMin - 1);
}

// Both kinds in one table, by turns.
uint32_t class_for(size_t length_bytes, BlockKind kind) {
  return size_class_for(length_bytes) * 2 + static_cast<uint32_t>(kind);
}
size_t class_bytes(uint32_t class_index) { return size_class_bytes(class_index / 2); }
BlockKind class_kind(uint32_t class_index) { return static_cast<BlockKind>(class_index % 2); }

bool release_pages(std::byte* data, size_t length_bytes, BlockKind kind) {
  return madvise(data, length_bytes, kind == BlockKind::kShared ? MADV_REMOVE : MADV_DONTNEED) == 0;
}

Result<std::unique_ptr<Slab>> make_slab(size_t length_bytes, BlockKind kind) {
  auto slab = std::make_unique<Slab>();
  if (kind == BlockKind::kLanding) {
    RRPC_ASSIGN_OR_RETURN(slab->landing, AnonymousMapping::create(length_bytes));
    return slab;
  }
  RRPC_ASSIGN_OR_RETURN(slab->shared, SharedMapping::create("rrpc-pool", length_bytes, true));
  const std::string path = "/proc/self/fd/" + std::to_string(slab->shared.fd());
  slab->read_only_fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!slab->read_only_fd) return Status::from_errno(errno, "opening pool memory for reading");
  if (length_bytes >= kHugePageBytes) (void)madvise(slab->data(), length_bytes, MADV_HUGEPAGE);
  return slab;
}

size_t physical_memory_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

Pool* g_process_pool = nullptr;
std::mutex g_process_pool_mutex;
int g_fork_generation = 0;  // written in a forked child before it has threads

}  // namespace

Pool::Pool(size_t limit_bytes) : fork_generation_(g_fork_generation), limit_bytes_(limit_bytes) {}

PoolBlock::PoolBlock(PoolBlock&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      class_index_(other.class_index_) {}

PoolBlock& PoolBlock::operator=(PoolBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(class_index_, other.class_index_);
  return *this;
}

PoolBlock::~PoolBlock() {
  // A block of the parent's pool in a forked child: the parent still has it.
  if (pool_ != nullptr && pool_->fork_generation_ == g_fork_generation) pool_->give_back(data_, class_index_);
}

Result<PoolBlock> Pool::allocate(size_t length_bytes, BlockKind kind) {
  const uint32_t class_index = class_for(length_bytes, kind);
  const size_t block_bytes = class_bytes(class_index);
  std::lock_guard lock(mutex_);
  if (block_bytes > limit_bytes_)
    return resource_exhausted("a buffer of " + std::to_string(length_bytes) +
                              " bytes is larger than the pool limit of " + std::to_string(limit_bytes_) +
                              " bytes; raise it with rrpc.set_pool_limit() or rrpc-serve --pool-limit");
  if (classes_.size() <= class_index) classes_.resize(class_index + 1);
  auto& free_blocks = classes_[class_index].free;
  if (free_blocks.empty()) RRPC_RETURN_IF_ERROR(grow_locked(class_index));
  if (!free_blocks.back().committed) {
    if (committed_bytes_ + block_bytes > limit_bytes_) trim_locked(committed_bytes_ + block_bytes - limit_bytes_);
    if (committed_bytes_ + block_bytes > limit_bytes_)
      return resource_exhausted(
          "the pool limit of " + std::to_string(limit_bytes_) + " bytes is reached (" +
          std::to_string(committed_bytes_) + " in use, " + std::to_string(length_bytes) +
          " wanted); release arrays or raise the limit with rrpc.set_pool_limit() or rrpc-serve --pool-limit");
    committed_bytes_ += block_bytes;
    count(counters().pool_bytes_committed, static_cast<int64_t>(block_bytes));
  }
  PoolBlock block;
  block.pool_ = this;
  block.data_ = free_blocks.back().data;
  block.size_ = length_bytes;
  block.class_index_ = class_index;
  free_blocks.pop_back();
  count(counters().pool_bytes_used, static_cast<int64_t>(block_bytes));
  return block;
}

Status Pool::grow_locked(uint32_t class_index) {
  const size_t block_bytes = class_bytes(class_index);
  const size_t slab_bytes =
      block_bytes <= kCarvedBlockBytesMax ? kCarvedSlabBytes / block_bytes * block_bytes : block_bytes;
  RRPC_ASSIGN_OR_RETURN(auto slab, make_slab(slab_bytes, class_kind(class_index)));
  auto& free_blocks = classes_[class_index].free;
  std::byte* base = slab->data();
  for (size_t offset = slab_bytes; offset >= block_bytes; offset -= block_bytes)
    free_blocks.push_back({base + offset - block_bytes, false});
  slabs_.emplace(base, std::move(slab));
  return {};
}

void Pool::give_back(std::byte* data, uint32_t class_index) {
  std::lock_guard lock(mutex_);
  classes_[class_index].free.push_back({data, true});
  count(counters().pool_bytes_used, -static_cast<int64_t>(class_bytes(class_index)));
}

void Pool::trim_locked(size_t needed_bytes) {
  size_t released_bytes = 0;
  for (size_t i = classes_.size(); i-- > 0 && released_bytes < needed_bytes;) {
    const size_t block_bytes = classes_[i].free.empty() ? 0 : class_bytes(static_cast<uint32_t>(i));
    for (FreeBlock& block : classes_[i].free) {
      if (released_bytes >= needed_bytes) break;
      if (!block.committed || !release_pages(block.data, block_bytes, class_kind(static_cast<uint32_t>(i)))) continue;
      block.committed = false;
      released_bytes += block_bytes;
    }
    // Committed blocks last, where allocate() takes from.
    std::stable_partition(classes_[i].free.begin(), classes_[i].free.end(),
                          [](const FreeBlock& b) { return !b.committed; });
  }
  committed_bytes_ -= released_bytes;
  count(counters().pool_bytes_committed, -static_cast<int64_t>(released_bytes));
}

void Pool::trim() {
  std::lock_guard lock(mutex_);
  trim_locked(SIZE_MAX);
}

const Slab* Pool::find_locked(const std::byte* address) const {
  auto it = slabs_.upper_bound(address);
  if (it == slabs_.begin()) return nullptr;
  const Slab* slab = std::prev(it)->second.get();
  return address < slab->data() + slab->size() ? slab : nullptr;
}

const Slab* Pool::find(const std::byte* address) const {
  std::lock_guard lock(mutex_);
  return find_locked(address);
}

void Pool::set_limit(size_t limit_bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  if (committed_bytes_ > limit_bytes_) trim_locked(committed_bytes_ - limit_bytes_);
}

size_t Pool::limit_bytes() const {
  std::lock_guard lock(mutex_);
  return limit_bytes_;
}

Pool& Pool::process() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    new (&g_process_pool_mutex) std::mutex();
    ++g_fork_generation;
    counters().pool_bytes_used = 0;
    counters().pool_bytes_committed = 0;
    if (g_process_pool != nullptr) g_process_pool = new Pool(g_process_pool->limit_bytes_);
  });
  (void)registered;
  std::lock_guard lock(g_process_pool_mutex);
  // Never destroyed: arrays may outlive every other part of the process.
  if (g_process_pool == nullptr) g_process_pool = new Pool(physical_memory_bytes() / 2);
  return *g_process_pool;
}

}  // namespace rrpc::endpoint
