#include "provider/sim/completion_queue.h"

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

SimCompletionQueue::~SimCompletionQueue() {
  RRPC_CHECK(attached_.empty(), "a completion queue outlives its queue pairs");
}

const std::byte* SimCompletionQueue::keep(uint32_t qp_number, uint64_t wr_id, Bytes message) {
  std::vector<std::byte>& kept = kept_[{qp_number, wr_id}];
  kept.assign(message.begin(), message.end());
  return kept.data();
}

void SimCompletionQueue::forget(uint32_t qp_number, uint64_t wr_id) {
  if (auto kept = kept_.extract({qp_number, wr_id}); !kept.empty()) scribble(kept.mapped());
}

size_t SimCompletionQueue::poll(std::span<Completion> out) {
  for (auto& [which, bytes] : kept_) scribble(bytes);
  kept_.clear();
  size_t count = 0;
  for (; count < out.size() && !visible_.empty(); ++count) {
    const CompletionEntry entry = std::move(visible_.front());
    visible_.pop_front();
    out[count] = entry.completion;
    out[count].place = fabric_.queue_pair(entry.completion.qp_number)->on_polled(entry);
  }
  if (count == 0 && !out.empty())
    for (const uint32_t number : attached_) fabric_.queue_pair(number)->ring();
  return count;
}

void SimCompletionQueue::detach(uint32_t qp_number) {
  std::erase_if(visible_, [qp_number](const auto& entry) { return entry.completion.qp_number == qp_number; });
  std::erase(attached_, qp_number);
}

void SimCompletionQueue::push(CompletionEntry entry) {
  visible_.push_back(std::move(entry));
  if (visible_.size() == depth_ + 1)
    fabric_.violation(host_, "completion queue of depth " + std::to_string(depth_) + " overflowed");
}

}  // namespace rrpc::provider::sim
