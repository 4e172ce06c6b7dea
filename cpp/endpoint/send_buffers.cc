#include "endpoint/send_buffers.h"

#include <algorithm>
#include <utility>

namespace rrpc::endpoint {

Status SendBuffers::start(provider::Device& device, provider::QueuePair& queue_pair, uint32_t count,
                          uint32_t buffer_bytes) {
  device_ = &device;
  queue_pair_ = &queue_pair;
  count_ = count;
  buffer_bytes_ = buffer_bytes;
  posted_.resize(count);
  return grow();
}

Status SendBuffers::grow() {
  const uint32_t more = std::min(std::max(made_, kFirst), count_ - made_);
  Step step;
  const size_t bytes = size_t{more} * buffer_bytes_;
  RRPC_ASSIGN_OR_RETURN(step.memory, AnonymousMapping::create(bytes));
  RRPC_ASSIGN_OR_RETURN(step.region, device_->register_memory({step.memory.data(), bytes, -1, false}));
  RRPC_RETURN_IF_ERROR(queue_pair_->adopt(*step.region));
  for (uint32_t i = more; i > 0; --i)
    free_.push_back({step.memory.data() + size_t{i - 1} * buffer_bytes_, step.region.get()});
  made_ += more;
  steps_.push_back(std::move(step));
  return {};
}

SendBuffers::Buffer SendBuffers::take() {
  const Buffer taken = free_.back();
  free_.pop_back();
  if (free_.empty() && made_ < count_) (void)grow();  // without memory for it the next message waits
  return taken;
}

void SendBuffers::done(uint32_t count) {
  if (!started()) return;
  for (; count > 0; --count) {
    const Buffer& buffer = posted_[done_count_++ % count_];
    if (buffer.memory != nullptr) free_.push_back(buffer);
  }
}

}  // namespace rrpc::endpoint
