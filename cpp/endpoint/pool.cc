#include "endpoint/pool.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/fault_in.h"
#include "base/memory_limit.h"
#include "endpoint/counters.h"

namespace rrpc::endpoint {
namespace {

constexpr size_t kBlockBytesMin = 4096;
constexpr size_t kCarvedBlockBytesMax = 128 << 10;  // smaller blocks share a slab, larger ones have their own
constexpr size_t kCarvedSlabBytes = 2 << 20;
constexpr size_t kFaultAheadBytesMin = 2 << 20;
constexpr int kRestsPerTimeout = 4;
constexpr TimeNs kRestMin = 10 * kMillisecond;
constexpr size_t kReleaseBytesPerTend = 8 << 20;  // page faults wait meanwhile
constexpr TimeNs kReleasePause = 5 * kMillisecond;

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

size_t round_up_to_pages(size_t bytes) { return (bytes + kBlockBytesMin - 1) & ~(kBlockBytesMin - 1); }

size_t slab_bytes(uint32_t class_index) {
  const size_t block_bytes = class_bytes(class_index);
  return block_bytes <= kCarvedBlockBytesMax ? kCarvedSlabBytes / block_bytes * block_bytes : block_bytes;
}

Pool* g_process_pool = nullptr;
std::mutex g_process_pool_mutex;
int g_fork_generation = 0;  // written in a forked child before it has threads

}  // namespace

PoolBlock::PoolBlock(PoolBlock&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      slab_(std::exchange(other.slab_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

PoolBlock& PoolBlock::operator=(PoolBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slab_, other.slab_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PoolBlock::~PoolBlock() {
  // A block of the parent's pool in a forked child: the parent still has it.
  if (pool_ != nullptr && pool_->fork_generation_ == fork_generation()) pool_->give_back(*slab_, data_);
}

Pool::Pool(size_t limit_bytes)
    : fork_generation_(fork_generation()),
      space_(std::make_shared<AddressSpace>(limit_bytes)),
      limit_bytes_(limit_bytes) {}

Result<PoolBlock> Pool::allocate(size_t length_bytes, BlockKind kind) {
  const uint32_t class_index = class_for(length_bytes, kind);
  const size_t block_bytes = class_bytes(class_index);
  std::unique_lock lock(mutex_);
  if (block_bytes > limit_bytes_)
    return resource_exhausted("a buffer of " + std::to_string(length_bytes) +
                              " bytes is larger than the pool limit of " + std::to_string(limit_bytes_) +
                              " bytes; raise it with rrpc.set_pool_limit() or rrpc-serve --pool-limit");
  if (classes_.size() <= class_index) classes_.resize(class_index + 1);
  Slab* slab = nullptr;
  while (slab == nullptr) {
    const size_t committed_bytes = space_->committed_bytes() + block_bytes;
    const bool may_commit = committed_bytes <= limit_bytes_;
    slab = open_slab_locked(class_index, may_commit);
    if (slab != nullptr) break;
    if (may_commit) {
      RRPC_ASSIGN_OR_RETURN(slab, make_slab_locked(class_index));
      break;
    }
    std::deque<SlabRef> retired = retire_locked(committed_bytes - limit_bytes_, UINT64_MAX);
    if (retired.empty()) return over_limit_locked(length_bytes);
    lock.unlock();
    retired.clear();  // gives the pages back
    lock.lock();
  }
  const bool fresh_landing = kind == BlockKind::kLanding && block_bytes >= kFaultAheadBytesMin &&
                             !slab->next_has_pages() && !slab->keeps_its_pages();
  PoolBlock block;
  block.pool_ = this;
  block.slab_ = slab;
  block.data_ = slab->take_block();
  block.size_ = length_bytes;
  slab->last_used = rests_;
  if (slab->full()) classes_[class_index].erase(slab->data());
  count(counters().pool_bytes_used, static_cast<int64_t>(block_bytes));
  if (!fresh_landing) return block;
  lock.unlock();
  fault_in_behind(block.data_, round_up_to_pages(length_bytes), slab->shared_from_this());
  return block;
}

size_t Pool::block_bytes(size_t length_bytes) { return size_class_bytes(size_class_for(length_bytes)); }

Status Pool::over_limit_locked(size_t length_bytes) const {
  return resource_exhausted(
      "the pool limit of " + std::to_string(limit_bytes_) + " bytes is reached (" +
      std::to_string(space_->committed_bytes()) + " in use, " + std::to_string(length_bytes) +
      " wanted); release arrays or raise the limit with rrpc.set_pool_limit() or rrpc-serve --pool-limit");
}

// Null where there is none, or none with a free block that has pages when no more may be committed.
Slab* Pool::open_slab_locked(uint32_t class_index, bool may_commit) const {
  for (const auto& [address, slab] : classes_[class_index])
    if (may_commit || slab->next_has_pages()) return slab;
  return nullptr;
}

Result<Slab*> Pool::make_slab_locked(uint32_t class_index) {
  RRPC_ASSIGN_OR_RETURN(const ExtentRange range, space_->take(class_kind(class_index), slab_bytes(class_index)));
  const auto slab = std::make_shared<Slab>(space_, range, class_bytes(class_index), class_index);
  slabs_.emplace(slab->data(), slab);
  classes_[class_index].emplace(slab->data(), slab.get());
  return slab.get();
}

void Pool::give_back(Slab& slab, const std::byte* data) {
  std::lock_guard lock(mutex_);
  if (slab.full()) classes_[slab.class_index()].emplace(slab.data(), &slab);
  slab.give_back_block(data);
  slab.last_used = rests_;
  count(counters().pool_bytes_used, -static_cast<int64_t>(slab.block_bytes()));
}

std::deque<Pool::SlabRef> Pool::retire_locked(size_t needed_bytes, uint64_t used_before) {
  std::deque<SlabRef> retired = std::exchange(resting_, {});
  size_t retired_bytes = 0;
  for (const SlabRef& slab : retired) retired_bytes += slab->committed_bytes();
  for (size_t i = classes_.size(); i-- > 0 && retired_bytes < needed_bytes;) {
    std::erase_if(classes_[i], [&](const auto& item) {
      Slab& slab = *item.second;
      if (!slab.unused() || slab.last_used >= used_before || retired_bytes >= needed_bytes) return false;
      retired_bytes += slab.committed_bytes();
      const auto owned = slabs_.find(slab.data());
      retired.push_back(std::move(owned->second));
      slabs_.erase(owned);
      return true;
    });
  }
  return retired;
}

size_t Pool::trim() {
  std::deque<SlabRef> retired;
  {
    std::lock_guard lock(mutex_);
    retired = retire_locked(SIZE_MAX, UINT64_MAX);
  }
  size_t released_bytes = 0;
  for (SlabRef& slab : retired) {
    const std::weak_ptr<Slab> watched = slab;
    const size_t bytes = slab->committed_bytes();
    slab.reset();
    if (watched.expired()) released_bytes += bytes;
  }
  return released_bytes;
}

void Pool::set_idle_timeout(TimeNs timeout) {
  std::lock_guard lock(mutex_);
  idle_timeout_ = timeout;
  next_rest_ = 0;
  next_tend_ = 0;
}

TimeNs Pool::idle_timeout() const {
  std::lock_guard lock(mutex_);
  return idle_timeout_;
}

// Counts a quarter of the idle timeout and retires what wasn't used for four of them.
void Pool::end_rest_locked(TimeNs now) {
  if (idle_timeout_ == kNever || now < next_rest_) return;
  const bool first = next_rest_ == 0;
  next_rest_ = deadline_after(now, std::max<TimeNs>(idle_timeout_ / kRestsPerTimeout, kRestMin));
  if (first || ++rests_ <= kRestsPerTimeout) return;
  resting_ = retire_locked(SIZE_MAX, rests_ - kRestsPerTimeout);
}

TimeNs Pool::tend(TimeNs now) {
  if (const TimeNs next = next_tend_.load(std::memory_order_relaxed); now < next) return next;
  SlabRef slab;
  for (size_t budget_bytes = kReleaseBytesPerTend; budget_bytes > 0;) {
    {
      std::lock_guard lock(mutex_);
      end_rest_locked(now);
      next_tend_ = idle_timeout_ == kNever ? kNever : next_rest_;
      if (resting_.empty()) break;
      slab = std::move(resting_.front());
      resting_.pop_front();
    }
    // Whoever else refers to it gives its pages back when letting go.
    const bool kept = slab.use_count() == 1 && !slab->release(budget_bytes);
    std::lock_guard lock(mutex_);
    if (kept) resting_.push_front(std::move(slab));
    slab.reset();
    if (!resting_.empty()) next_tend_ = deadline_after(now, kReleasePause);
  }
  return next_tend_;
}

std::shared_ptr<Slab> Pool::find(const std::byte* address) const {
  std::lock_guard lock(mutex_);
  auto it = slabs_.upper_bound(address);
  if (it == slabs_.begin()) return nullptr;
  const SlabRef& slab = std::prev(it)->second;
  return slab->contains(address) ? slab : nullptr;
}

void Pool::set_limit(size_t limit_bytes) {
  std::deque<SlabRef> retired;  // given back after the mutex
  std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  const size_t committed_bytes = space_->committed_bytes();
  if (committed_bytes > limit_bytes_) retired = retire_locked(committed_bytes - limit_bytes_, UINT64_MAX);
}

size_t Pool::limit_bytes() const {
  std::lock_guard lock(mutex_);
  return limit_bytes_;
}

void Pool::end_registrations(const provider::Device& device) {
  std::lock_guard lock(mutex_);
  for (const auto& [address, slab] : slabs_) slab->end_registration(device);
  for (const SlabRef& slab : resting_) slab->end_registration(device);
}

int fork_generation() { return g_fork_generation; }

void Pool::begin_in_child() {
  ++g_fork_generation;  // first: the new pool is the child's
  new (&g_process_pool_mutex) std::mutex();
  counters().pool_bytes_used = 0;
  counters().pool_bytes_committed = 0;
  if (g_process_pool == nullptr) return;
  const Pool& parents = *g_process_pool;
  g_process_pool = new Pool(parents.limit_bytes_);
  g_process_pool->idle_timeout_ = parents.idle_timeout_;
  if (parents.preferred_node() >= 0) (void)g_process_pool->prefer_node(parents.preferred_node());  // has no extents
}

const AtFork Pool::kAtFork{&Pool::begin_in_child};

Pool& Pool::process() {
  std::lock_guard lock(g_process_pool_mutex);
  // Never destroyed: arrays may outlive every other part of the process.
  if (g_process_pool == nullptr) g_process_pool = new Pool(memory_limit_bytes() / 2);
  return *g_process_pool;
}

}  // namespace rrpc::endpoint
