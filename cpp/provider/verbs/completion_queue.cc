#include "provider/verbs/completion_queue.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/fork.h"
#include "provider/verbs/queue_pair.h"

namespace rrpc::provider::verbs {

// What costs system calls (connection events) is looked at so often while completions alone are polled for. Who sleeps
// on the wait handles is kept awake by such an event until then.
static constexpr TimeNs kLookEvery = kMillisecond;

VerbsCompletionQueue::VerbsCompletionQueue()
    : fork_generation_(fork_generation()),
      wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      wait_fd_(epoll_create1(EPOLL_CLOEXEC)) {}

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

void VerbsCompletionQueue::attach(VerbsQueuePair* queue_pair) {
  queue_pairs_.push_back(queue_pair);
  watch({});
}

// Its descriptors may be closed next, and their numbers be those of others.
void VerbsCompletionQueue::detach(VerbsQueuePair* queue_pair) {
  std::erase(queue_pairs_, queue_pair);
  watch({});
}

size_t VerbsCompletionQueue::poll(std::span<Completion> out) {
  const TimeNs now = now_ns();
  bool look = now >= next_look_;
  if (woken_.load(std::memory_order_relaxed)) {
    woken_ = false;
    eventfd_t count = 0;
    eventfd_read(wake_fd_.get(), &count);
    look = true;
  }
  if (look) next_look_ = now + kLookEvery;
  size_t count = 0;
  const size_t queue_pair_count = queue_pairs_.size();
  if (queue_pair_count > 1) turn_ = (turn_ + 1) % queue_pair_count;
  for (size_t i = 0; i < queue_pair_count; ++i) {
    VerbsQueuePair* queue_pair = queue_pairs_[(turn_ + i) % queue_pair_count];
    count += queue_pair->poll(out.subspan(count), now, look);
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

// One descriptor for all: sleepers add it to their own sets and take it out again with every wait.
void VerbsCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  std::vector<WaitHandle> handles;
  for (const Channel& channel : channels_) handles.push_back({.fd = channel.handle->fd});
  if (wake_fd_) handles.push_back({.fd = wake_fd_.get()});
  for (const VerbsQueuePair* queue_pair : queue_pairs_) queue_pair->append_wait_handles(handles);
  if (!wait_fd_) {
    out.insert(out.end(), handles.begin(), handles.end());
    return;
  }
  const auto same = [](const WaitHandle& a, const WaitHandle& b) {
    return a.fd == b.fd && a.want_write == b.want_write;
  };
  if (!std::equal(handles.begin(), handles.end(), watched_.begin(), watched_.end(), same)) watch(std::move(handles));
  out.push_back({.fd = wait_fd_.get()});
}

void VerbsCompletionQueue::watch(std::vector<WaitHandle> handles) const {
  for (const WaitHandle& handle : watched_) epoll_ctl(wait_fd_.get(), EPOLL_CTL_DEL, handle.fd, nullptr);
  watched_ = std::move(handles);
  for (const WaitHandle& handle : watched_) {
    epoll_event event{};
    event.events = EPOLLIN | (handle.want_write ? uint32_t{EPOLLOUT} : 0u);
    epoll_ctl(wait_fd_.get(), EPOLL_CTL_ADD, handle.fd, &event);
  }
}

bool VerbsCompletionQueue::lingering() const {
  return std::any_of(queue_pairs_.begin(), queue_pairs_.end(),
                     [](const VerbsQueuePair* queue_pair) { return queue_pair->lingering(); });
}

void VerbsCompletionQueue::wake() {
  eventfd_write(wake_fd_.get(), 1);
  woken_ = true;  // after: whoever sees it finds the descriptor readable, and empties it
}

}  // namespace rrpc::provider::verbs
