#include "provider/tcp/completion_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace rrpc::provider::tcp {

static constexpr TimeNs kLinger = 1 * kSecond;
static constexpr size_t kLingeringMax = 256;
static constexpr size_t kLingeringBytesMax = 16 << 20;

TcpCompletionQueue::~TcpCompletionQueue() {
  RRPC_CHECK(queue_pair_count_ == 0, "a completion queue outlives its queue pairs");
  drive_lingering();
}

size_t TcpCompletionQueue::poll(std::span<Completion> out) {
  moved_bytes_ = false;
  if (ready_.empty()) drive();
  const size_t count = std::min(out.size(), ready_.size());
  for (size_t i = 0; i < count; ++i) {
    const Ready ready = ready_.front();
    ready_.pop_front();
    out[i] = ready.completion;
    ready.queue_pair->completion_taken(ready.completion.opcode);
  }
  return count;
}

void TcpCompletionQueue::drive() {
  // Backwards, since a queue pair that fails takes itself out.
  for (size_t i = attached_.size(); i-- > 0;) attached_[i]->drive();
  if (!lingering_.empty()) drive_lingering();
}

void TcpCompletionQueue::drive_lingering() {
  const TimeNs now = now_ns();
  std::erase_if(lingering_, [&](Lingering& socket) {
    const size_t rest_bytes = socket.rest_bytes();
    if (socket.drive(now)) {
      lingering_bytes_ -= rest_bytes;
      return true;
    }
    lingering_bytes_ -= rest_bytes - socket.rest_bytes();
    return false;
  });
}

void TcpCompletionQueue::append_wait_handles(std::vector<WaitHandle>& out) const {
  if (!ready_.empty()) out.push_back({WaitHandle::kPollAgain});
  for (const Pollable* queue_pair : attached_) out.push_back({queue_pair->fd(), queue_pair->want_write()});
  for (const Lingering& socket : lingering_) out.push_back({socket.fd(), socket.want_write()});
}

void TcpCompletionQueue::detach(Pollable* queue_pair) {
  const auto found = std::find(attached_.begin(), attached_.end(), queue_pair);
  if (found == attached_.end()) return;
  *found = attached_.back();
  attached_.pop_back();
}

void TcpCompletionQueue::linger(UniqueFd fd, std::vector<std::byte> rest) {
  Lingering socket(std::move(fd), std::move(rest), deadline_after(now_ns(), kLinger));
  if (socket.drive(now_ns())) return;
  if (lingering_.size() >= kLingeringMax || lingering_bytes_ + socket.rest_bytes() > kLingeringBytesMax) return;
  lingering_bytes_ += socket.rest_bytes();
  lingering_.push_back(std::move(socket));
}

void TcpCompletionQueue::push(Pollable* queue_pair, const Completion& completion, std::byte* receive) {
  ready_.push_back({completion, queue_pair, receive});
}

void TcpCompletionQueue::settle(const Pollable* queue_pair) {
  for (auto& [completion, its_queue_pair, receive] : ready_) {
    if (its_queue_pair != queue_pair || completion.place == nullptr) continue;
    std::memcpy(receive, completion.place, completion.length_bytes);
    completion.place = nullptr;
  }
}

void TcpCompletionQueue::forget(Pollable* queue_pair) {
  detach(queue_pair);
  std::erase_if(ready_, [&](const Ready& ready) { return ready.queue_pair == queue_pair; });
  --queue_pair_count_;
}

}  // namespace rrpc::provider::tcp
