#include "provider/shm/completion_queue.h"

#include <algorithm>
#include <utility>

#include "provider/shm/queue_pair.h"

namespace rrpc::provider::shm {

ShmCompletionQueue::~ShmCompletionQueue() {
  for (ShmQueuePair* queue_pair : queue_pairs_) queue_pair->forget_completion_queue();
}

void ShmCompletionQueue::detach(ShmQueuePair& queue_pair) {
  std::erase(queue_pairs_, &queue_pair);
  std::erase(to_arm_, &queue_pair);
}

void ShmCompletionQueue::check_sockets() {
  for (ShmQueuePair* queue_pair : queue_pairs_)
    if (queue_pair->watched()) queue_pair->on_socket_readable();
  polls_to_socket_check_ = connecting_count_ > 0 ? 1 : kPollsPerSocketCheck;
}

size_t ShmCompletionQueue::poll(std::span<Completion> out) {
  if (--polls_to_socket_check_ <= 0) [[unlikely]]
    check_sockets();
  size_t work_bytes = kWorkBytesPerPoll;
  const size_t used =
      queue_pairs_.size() == 1 ? queue_pairs_.front()->poll(out, work_bytes) : poll_several(out, work_bytes);
  moved_bytes_ = work_bytes < kWorkBytesPerPoll;
  return used;
}

size_t ShmCompletionQueue::poll_several(std::span<Completion> out, size_t& work_bytes) {
  const size_t count = queue_pairs_.size();
  if (first_ >= count) first_ = 0;
  size_t used = 0;
  size_t index = first_++;
  for (size_t i = 0; i < count; ++i) {
    used += queue_pairs_[index]->poll(out.subspan(used), work_bytes);
    if (++index == count) index = 0;
  }
  return used;
}

// Those that are armed stay so, unless they would be woken by other things.
void ShmCompletionQueue::arm_by(WokenBy woken_by) {
  if (std::exchange(armed_by_, woken_by) != woken_by) to_arm_ = queue_pairs_;
  std::erase_if(to_arm_, [woken_by](ShmQueuePair* queue_pair) { return queue_pair->arm(woken_by); });
}

bool ShmCompletionQueue::disarm() {
  for (ShmQueuePair* queue_pair : queue_pairs_) queue_pair->disarm();
  return true;
}

NextMessage ShmCompletionQueue::next_message() const {
  return queue_pairs_.size() == 1 && connecting_count_ == 0 ? queue_pairs_.front()->next_message() : NextMessage();
}

void ShmCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  for (const ShmQueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->has_local_work()) out.push_back({WaitHandle::kPollAgain});
    if (queue_pair->watched()) out.push_back({queue_pair->socket(), queue_pair->backlogged()});
  }
}

}  // namespace rrpc::provider::shm
