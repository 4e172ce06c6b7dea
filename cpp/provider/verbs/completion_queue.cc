#include "provider/verbs/completion_queue.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/fork.h"
#include "provider/verbs/queue_pair.h"

namespace rrpc::provider::verbs {

// What costs system calls (connection events) is looked at so often while completions alone are polled for, and at once
// where a wait handle has told of it.
static constexpr TimeNs kLookEvery = kMillisecond;
static constexpr uint32_t kPollsPerClock = 8;  // the clock costs as much as a poll that finds nothing

VerbsCompletionQueue::VerbsCompletionQueue() : fork_generation_(fork_generation()) {}

VerbsCompletionQueue::~VerbsCompletionQueue() {
  if (fork_generation_ != fork_generation()) return;
  RRPC_CHECK(queue_pairs_.empty(), "a completion queue outlives its queue pairs");
  for (const Channel& channel : channels_) ibv_destroy_comp_channel(channel.handle);
}

Result<ibv_comp_channel*> VerbsCompletionQueue::channel_of(Adapter& adapter) {
  for (const Channel& channel : channels_) {
    if (channel.context == adapter.context()) return channel.handle;
  }
  errno = 0;
  ibv_comp_channel* handle = ibv_create_comp_channel(adapter.context());
  if (handle == nullptr) return verbs_error(errno, "making a completion channel");
  fcntl(handle->fd, F_SETFL, fcntl(handle->fd, F_GETFL) | O_NONBLOCK);
  fcntl(handle->fd, F_SETFD, FD_CLOEXEC);
  channels_.push_back({adapter.context(), handle});
  return handle;
}

void VerbsCompletionQueue::attach(VerbsQueuePair* queue_pair) { queue_pairs_.push_back(queue_pair); }

void VerbsCompletionQueue::detach(VerbsQueuePair* queue_pair) { std::erase(queue_pairs_, queue_pair); }

bool VerbsCompletionQueue::time_to_look() {
  polls_to_clock_ = kPollsPerClock;
  const TimeNs now = now_ns();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  return true;
}

size_t VerbsCompletionQueue::poll(std::span<Completion> out) {
  const bool look = --polls_to_clock_ == 0 && time_to_look();
  const size_t queue_pair_count = queue_pairs_.size();
  if (queue_pair_count == 1) [[likely]]
    return queue_pairs_.front()->poll(out, look);
  size_t count = 0;
  if (queue_pair_count > 1) turn_ = (turn_ + 1) % queue_pair_count;
  for (size_t i = 0; i < queue_pair_count; ++i) {
    VerbsQueuePair* queue_pair = queue_pairs_[(turn_ + i) % queue_pair_count];
    count += queue_pair->poll(out.subspan(count), look);
  }
  return count;
}

bool VerbsCompletionQueue::notification_is_due() const {
  return std::any_of(queue_pairs_.begin(), queue_pairs_.end(),
                     [](const VerbsQueuePair* queue_pair) { return queue_pair->notification_is_due(); });
}

// A read that finds nothing is a system call too: none is made where nothing can have come. What has come unseen wakes
// the next sleeper, who polls its completions.
void VerbsCompletionQueue::take_events(const Channel& channel) {
  ibv_cq* completions = nullptr;
  void* queue_pair = nullptr;
  while (notification_is_due() && ibv_get_cq_event(channel.handle, &completions, &queue_pair) == 0) {
    static_cast<VerbsQueuePair*>(queue_pair)->on_notified();
  }
}

void VerbsCompletionQueue::arm() {
  for (const Channel& channel : channels_) take_events(channel);
  for (VerbsQueuePair* queue_pair : queue_pairs_) queue_pair->request_notification();
}

void VerbsCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  for (const Channel& channel : channels_) out.push_back({.fd = channel.handle->fd});
  for (const VerbsQueuePair* queue_pair : queue_pairs_) queue_pair->append_wait_handles(out);
}

bool VerbsCompletionQueue::lingering() const {
  return std::any_of(queue_pairs_.begin(), queue_pairs_.end(),
                     [](const VerbsQueuePair* queue_pair) { return queue_pair->lingering(); });
}

}  // namespace rrpc::provider::verbs
