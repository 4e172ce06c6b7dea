#include "provider/tcp/silent_sockets.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rrpc::provider::tcp {
namespace {

constexpr int kAcceptBatch = 4;  // some 40 µs each: established connections wait meanwhile
constexpr int kDropBatch = 8;
constexpr TimeNs kDropPause = kMillisecond;
constexpr uint64_t kListening = 0;
constexpr uint64_t kTimer = 1;

bool concerns_one_attempt(int error_number) {
  return error_number == ECONNABORTED || error_number == EPROTO || error_number == EINTR || error_number == ENETDOWN ||
         error_number == EHOSTUNREACH || error_number == ENETUNREACH;
}

bool has_spoken(int fd) {
  char first;
  return ::recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

}  // namespace

Status SilentSockets::open() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return Status::from_errno(errno, "waiting for clients");
  RRPC_RETURN_IF_ERROR(watch(listening_fd_, kListening));
  return watch(timer_.get(), kTimer);
}

Status SilentSockets::watch(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return Status::from_errno(errno, "waiting for a client");
}

Status SilentSockets::accept_some() {
  for (int i = 0; i < kAcceptBatch; ++i) {
    UniqueFd socket(::accept4(listening_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EMFILE || errno == ENFILE) && !sockets_.empty()) {
      drop_oldest();
      continue;
    }
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (!socket && concerns_one_attempt(errno)) continue;
    if (!socket) return Status::from_errno(errno, "cannot accept a connection");
    if (sockets_.size() >= most_) drop_oldest();
    RRPC_RETURN_IF_ERROR(watch(socket.get(), next_key_));
    sockets_.emplace_hint(sockets_.end(), next_key_++, Silent{std::move(socket), now_ns()});
  }
  return {};
}

// Closing alone takes nothing out of epoll while a forked child has a copy of the descriptor.
void SilentSockets::drop_oldest() {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, sockets_.begin()->second.socket.get(), nullptr);
  sockets_.erase(sockets_.begin());
}

// Some of them: thousands may have come at once, and to close each takes 15 us.
void SilentSockets::drop_late() {
  const TimeNs now = now_ns();
  const auto late = [&] { return !sockets_.empty() && sockets_.begin()->second.since + silence_max_ <= now; };
  for (int i = 0; i < kDropBatch && late(); ++i) drop_oldest();
  if (sockets_.empty()) return;  // a timer that fires for nothing does no harm
  const TimeNs at = late() ? now + kDropPause : sockets_.begin()->second.since + silence_max_;
  if (at == timer_at_) return;
  timer_at_ = at;
  const TimeNs left = at - now;
  const itimerspec when{{}, {static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)}};
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

Result<UniqueFd> SilentSockets::next() {
  const Status accepted = accept_some();
  UniqueFd spoken;
  epoll_event event{};
  // One at a time, so that they come in the order in which they spoke: beside sockets there are two other handles.
  for (int i = 0; i < 3 && !spoken && epoll_wait(epoll_.get(), &event, 1, 0) == 1; ++i) {
    if (event.data.u64 == kTimer) {
      uint64_t expirations = 0;
      if (::read(timer_.get(), &expirations, sizeof(expirations)) > 0) timer_at_ = kNever;
    }
    const auto it = sockets_.find(event.data.u64);
    if (it == sockets_.end()) continue;
    UniqueFd socket = std::move(it->second.socket);
    sockets_.erase(it);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
    if (has_spoken(socket.get())) spoken = std::move(socket);
  }
  drop_late();
  if (!spoken && !accepted.ok()) return accepted;
  return spoken;
}

}  // namespace rrpc::provider::tcp
