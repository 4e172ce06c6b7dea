// Memory for messages that a queue pair doesn't take inline. Registered in steps, as more of them are on their way at a
// time than ever before: a connection that says little pins little. Of the connection's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/anonymous_mapping.h"
#include "base/result.h"
#include "provider/provider.h"

namespace rrpc::endpoint {

class SendBuffers {
 public:
  struct Buffer {
    std::byte* memory = nullptr;  // null: the message went inline
    const provider::MemoryRegion* region = nullptr;
  };

  // The first few of `count`, so that a lack of memory shows at the start.
  Status start(provider::Device& device, provider::QueuePair& queue_pair, uint32_t count, uint32_t buffer_bytes);
  // All are on their way, and there is no memory for more: nothing can be sent until one is done.
  bool used_up() const { return started() && free_.empty(); }
  // Not when used up.
  Buffer take();
  // The adapter had better say soon that they are done.
  bool scarce() const { return free_.size() * 2 <= made_; }
  // A message was posted; in the order of posting the oldest `count` are done.
  void posted(const Buffer& buffer) {
    if (started()) posted_[posted_count_++ % count_] = buffer;
  }
  void done(uint32_t count);

 private:
  bool started() const { return device_ != nullptr; }
  static constexpr uint32_t kFirst = 2;
  struct Step {
    AnonymousMapping memory;
    std::unique_ptr<provider::MemoryRegion> region;
  };
  Status grow();

  provider::Device* device_ = nullptr;
  provider::QueuePair* queue_pair_ = nullptr;
  uint32_t count_ = 0;
  uint32_t buffer_bytes_ = 0;
  uint32_t made_ = 0;
  std::vector<Step> steps_;     // each as many as all before it
  std::vector<Buffer> free_;    // the last one used is the first to be used again
  std::vector<Buffer> posted_;  // a ring
  uint64_t posted_count_ = 0;
  uint64_t done_count_ = 0;
};

}  // namespace rrpc::endpoint
