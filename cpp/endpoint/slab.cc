#include "endpoint/slab.h"

#include <sys/mman.h>

#include <algorithm>

#include "endpoint/counters.h"

namespace rrpc::endpoint {

Slab::Slab(std::shared_ptr<AddressSpace> space, const ExtentRange& range, size_t block_bytes, uint32_t class_index)
    : space_(std::move(space)),
      range_(range),
      block_bytes_(block_bytes),
      class_index_(class_index),
      block_count_(range.length_bytes / block_bytes),
      fork_generation_(fork_generation()) {}

// In a forked child the pages are the parent's too.
Slab::~Slab() {
  size_t budget_bytes = SIZE_MAX;
  if (fork_generation_ != fork_generation() || !release(budget_bytes)) return;
  space_->uncommit(committed_bytes());
  space_->give_back(range_);
}

bool Slab::release(size_t& budget_bytes) {
  registrations_.clear();
  released_bytes_ = std::max(released_bytes_, range_.kept_bytes());
  const int advice = range_.extent->kind() == BlockKind::kShared ? MADV_REMOVE : MADV_DONTNEED;
  // Registering touches all of it, whatever is in use. Without pages it costs next to nothing.
  while (released_bytes_ < size()) {
    if (budget_bytes == 0) return false;
    const size_t piece = std::min(budget_bytes, size() - released_bytes_);
    (void)madvise(data() + released_bytes_, piece, advice);  // fails where the process has locked its memory
    released_bytes_ += piece;
    budget_bytes -= piece;
  }
  return true;
}

provider::MemoryRange Slab::range() const {
  return {.address = data(), .length_bytes = size(), .fd = range_.extent->fd(), .file_offset = range_.offset};
}

Result<RegionRef> Slab::region(provider::Device& device) {
  std::lock_guard lock(registrations_mutex_);
  auto found = std::ranges::find(registrations_, &device, &Registration::device);
  if (found == registrations_.end()) {
    RRPC_ASSIGN_OR_RETURN(auto made, device.register_memory(range()));
    count(counters().registrations_made);
    found = registrations_.insert(found, {&device, std::move(made)});
  }
  return RegionRef(shared_from_this(), found->region.get());
}

void Slab::end_registration(const provider::Device& device) {
  std::lock_guard lock(registrations_mutex_);
  std::erase_if(registrations_, [&](const Registration& registration) { return registration.device == &device; });
}

std::byte* Slab::take_block() {
  size_t index = touched_;
  if (free_.empty()) {
    space_->commit(block_bytes_);
    ++touched_;
  } else {
    index = free_.back();
    free_.pop_back();
  }
  ++used_;
  return data() + index * block_bytes_;
}

void Slab::give_back_block(const std::byte* block) {
  free_.push_back(static_cast<size_t>(block - data()) / block_bytes_);
  --used_;
}

}  // namespace rrpc::endpoint
