#include "provider/shm/completion_queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "provider/shm/queue_pair.h"

namespace rrpc::provider::shm {

namespace {

// Readable for ever: what a sleeper gets where there is work that needs no event but the next poll.
int always_ready_fd() {
  static const UniqueFd fd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  return fd.get();
}

}  // namespace

ShmCompletionQueue::~ShmCompletionQueue() {
  for (ShmQueuePair* queue_pair : queue_pairs_) queue_pair->forget_completion_queue();
}

Status ShmCompletionQueue::attach(ShmQueuePair& queue_pair) {
  if (!epoll_) epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return Status::from_errno(errno, "epoll_create1");
  queue_pairs_.push_back(&queue_pair);
  return {};
}

void ShmCompletionQueue::detach(ShmQueuePair& queue_pair) {
  std::erase(queue_pairs_, &queue_pair);
  std::erase(to_arm_, &queue_pair);
}

Status ShmCompletionQueue::watch(ShmQueuePair& queue_pair, int socket) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = &queue_pair;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) != 0)
    return Status::from_errno(errno, "watching a socket");
  return {};
}

void ShmCompletionQueue::unwatch(int socket) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

void ShmCompletionQueue::check_sockets() {
  polls_to_socket_check_ = kPollsPerSocketCheck;
  if (!epoll_) return;
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) static_cast<ShmQueuePair*>(events[i].data.ptr)->on_socket_readable();
  if (count == static_cast<int>(events.size())) polls_to_socket_check_ = 1;
}

size_t ShmCompletionQueue::poll(std::span<Completion> out) {
  if (--polls_to_socket_check_ <= 0 || connecting_count_ > 0) check_sockets();
  const size_t count = queue_pairs_.size();
  if (count == 0) return 0;
  if (first_ >= count) first_ = 0;
  size_t used = 0;
  size_t work_bytes = kWorkBytesPerPoll;
  size_t index = first_++;
  for (size_t i = 0; i < count; ++i) {
    used += queue_pairs_[index]->poll(out.subspan(used), work_bytes);
    if (++index == count) index = 0;
  }
  return used;
}

// The poll after arming only looks at memory, the one after the sleep asks about the sockets too.
void ShmCompletionQueue::arm() {
  polls_to_socket_check_ = std::min(polls_to_socket_check_, 2);
  std::erase_if(to_arm_, [](ShmQueuePair* queue_pair) { return queue_pair->arm(); });
}

void ShmCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  if (epoll_) out.push_back({epoll_.get(), false});
  for (const ShmQueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->has_local_work()) out.push_back({always_ready_fd(), false});
    if (queue_pair->has_local_work()) return;
    if (queue_pair->backlogged()) out.push_back({queue_pair->socket(), true});
  }
}

}  // namespace rrpc::provider::shm
