#include "provider/tcp/completion_queue.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rrpc::provider::tcp {

// Up to so many sockets are read without asking which are ready.
static constexpr size_t kDirectSocketsMax = 4;
static constexpr int kEventsMax = 64;
static constexpr TimeNs kLinger = 1 * kSecond;
static constexpr size_t kLingeringMax = 256;
static constexpr size_t kLingeringBytesMax = 16 << 20;

TcpCompletionQueue::~TcpCompletionQueue() {
  RRPC_CHECK(queue_pair_count_ == 0, "a completion queue outlives its queue pairs");
  drive_lingering();
}

size_t TcpCompletionQueue::poll(std::span<Completion> out) {
  const bool was_armed = std::exchange(armed_, false);
  if (event_set_) {
    eventfd_t count = 0;
    eventfd_read(event_.get(), &count);
    event_set_ = false;
  }
  if (ready_.size() < out.size()) drive();
  const size_t count = std::min(out.size(), ready_.size());
  for (size_t i = 0; i < count; ++i) {
    const Ready ready = ready_.front();
    ready_.pop_front();
    out[i] = ready.completion;
    ready.queue_pair->completion_taken(ready.completion.opcode);
  }
  // The empty poll between arm() and the sleep leaves it armed.
  armed_ = was_armed && count == 0 && ready_.empty();
  return count;
}

void TcpCompletionQueue::drive() {
  if (attached_.size() <= kDirectSocketsMax || !ensure_epoll()) {
    // Backwards, since a queue pair that fails takes itself out.
    for (size_t i = attached_.size(); i-- > 0;) attached_[i]->drive();
  } else {
    drive_ready();
  }
  if (!lingering_.empty()) drive_lingering();
}

void TcpCompletionQueue::drive_ready() {
  epoll_event events[kEventsMax];
  const int count = epoll_wait(epoll_.get(), events, kEventsMax, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != nullptr) static_cast<Pollable*>(events[i].data.ptr)->drive();
  }
}

void TcpCompletionQueue::drive_lingering() {
  const TimeNs now = now_ns();
  std::erase_if(lingering_, [&](Lingering& socket) {
    const bool wanted_write = socket.want_write();
    const size_t rest_bytes = socket.rest_bytes();
    if (socket.drive(now)) {
      lingering_bytes_ -= rest_bytes;
      return true;  // closing takes it out of epoll
    }
    lingering_bytes_ -= rest_bytes - socket.rest_bytes();
    if (socket.want_write() != wanted_write) watch(EPOLL_CTL_MOD, socket.fd(), socket.want_write(), nullptr);
    return false;
  });
}

void TcpCompletionQueue::arm() {
  armed_ = true;
  if (!event_) {
    event_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (event_) watch(EPOLL_CTL_ADD, event_.get(), false, nullptr);
  }
}

void TcpCompletionQueue::wake() {
  if (!event_ || event_set_) return;
  eventfd_write(event_.get(), 1);
  event_set_ = true;
}

// One descriptor stands for all: a thread that sleeps on it notices what others change meanwhile.
void TcpCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  if (ensure_epoll()) {
    out.push_back({.fd = epoll_.get(), .want_write = false});
    return;
  }
  for (const Pollable* queue_pair : attached_) out.push_back({queue_pair->fd(), queue_pair->want_write()});
  if (event_) out.push_back({.fd = event_.get(), .want_write = false});
}

bool TcpCompletionQueue::ensure_epoll() const {
  if (epoll_) return true;
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return false;
  for (Pollable* queue_pair : attached_) watch(EPOLL_CTL_ADD, queue_pair->fd(), queue_pair->want_write(), queue_pair);
  for (const Lingering& socket : lingering_) watch(EPOLL_CTL_ADD, socket.fd(), socket.want_write(), nullptr);
  if (event_) watch(EPOLL_CTL_ADD, event_.get(), false, nullptr);
  return true;
}

void TcpCompletionQueue::watch(int operation, int fd, bool want_write, Pollable* queue_pair) const {
  if (!epoll_) return;
  epoll_event event{};
  event.events = EPOLLIN | (want_write ? EPOLLOUT : 0u);
  event.data.ptr = queue_pair;
  epoll_ctl(epoll_.get(), operation, fd, &event);
}

void TcpCompletionQueue::attach(Pollable* queue_pair) {
  attached_.push_back(queue_pair);
  watch(EPOLL_CTL_ADD, queue_pair->fd(), queue_pair->want_write(), queue_pair);
}

void TcpCompletionQueue::update(Pollable* queue_pair) {
  watch(EPOLL_CTL_MOD, queue_pair->fd(), queue_pair->want_write(), queue_pair);
}

void TcpCompletionQueue::detach(Pollable* queue_pair) {
  const auto found = std::find(attached_.begin(), attached_.end(), queue_pair);
  if (found == attached_.end()) return;
  watch(EPOLL_CTL_DEL, queue_pair->fd(), false, nullptr);
  *found = attached_.back();
  attached_.pop_back();
}

void TcpCompletionQueue::linger(UniqueFd fd, std::vector<std::byte> rest) {
  Lingering socket(std::move(fd), std::move(rest), deadline_after(now_ns(), kLinger));
  if (socket.drive(now_ns())) return;
  if (lingering_.size() >= kLingeringMax || lingering_bytes_ + socket.rest_bytes() > kLingeringBytesMax) return;
  lingering_bytes_ += socket.rest_bytes();
  watch(EPOLL_CTL_ADD, socket.fd(), socket.want_write(), nullptr);
  lingering_.push_back(std::move(socket));
}

void TcpCompletionQueue::push(Pollable* queue_pair, const Completion& completion) {
  ready_.push_back({completion, queue_pair});
  if (armed_) wake();
}

void TcpCompletionQueue::forget(Pollable* queue_pair) {
  detach(queue_pair);
  std::erase_if(ready_, [&](const Ready& ready) { return ready.queue_pair == queue_pair; });
  --queue_pair_count_;
}

}  // namespace rrpc::provider::tcp
