#include "provider/tcp/handshakes.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "provider/socket.h"

namespace rrpc::provider::tcp {
namespace {

constexpr TimeNs kHandshakeMax = 10 * kSecond;
constexpr size_t kReadyMax = 256;  // finished and not taken: then no more are begun
constexpr int kBeginBatch = 16;
constexpr int kNice = 10;  // established connections go first
constexpr int kLateCheckMs = 1000;
constexpr uint64_t kSilent = 0;
constexpr uint64_t kStop = 1;

// Of this thread alone, as Linux has both. A thread under SCHED_BATCH takes its core from nobody when it wakes, as it
// does for each packet of a handshake, and gets its share all the same.
void yield_to_others() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
  setpriority(PRIO_PROCESS, 0, kNice);
}

void signal_fd(int fd) { (void)eventfd_write(fd, 1); }

void drain_fd(int fd) {
  eventfd_t count = 0;
  (void)eventfd_read(fd, &count);
}

}  // namespace

Handshakes::~Handshakes() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  signal_fd(stop_fd_.get());
  thread_.join();
}

Status Handshakes::start() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  ready_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  stop_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !ready_fd_ || !stop_fd_) return Status::from_errno(errno, "waiting for TLS clients");
  if (!watch(silent_.wait_fd(), kSilent, false, EPOLL_CTL_ADD) || !watch(stop_fd_.get(), kStop, false, EPOLL_CTL_ADD))
    return Status::from_errno(errno, "waiting for TLS clients");
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // Python's handlers run in its own threads
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

bool Handshakes::watch(int fd, uint64_t key, bool wants_write, int operation) const {
  epoll_event event{};
  event.events = wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = key;
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

Result<Secured> Handshakes::next() {
  std::lock_guard lock(mutex_);
  if (ready_.empty()) {
    drain_fd(ready_fd_.get());
    return Secured{};
  }
  Result<Secured> first = std::move(ready_.front());
  ready_.pop_front();
  room_.notify_all();
  return first;
}

void Handshakes::hand_over(Result<Secured> secured) {
  std::lock_guard lock(mutex_);
  ready_.push_back(std::move(secured));
  signal_fd(ready_fd_.get());
}

void Handshakes::run() {
  pthread_setname_np(pthread_self(), "rrpc-tls");
  yield_to_others();
  std::array<epoll_event, 64> events{};
  while (true) {
    const int wait_ms = under_way_.empty() ? -1 : kLateCheckMs;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
    bool new_ones = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kStop) return;
      if (key == kSilent) new_ones = true;
      const auto it = under_way_.find(key);
      if (it != under_way_.end()) step(it);
    }
    drop_late(now_ns());
    if (new_ones) begin_some();
  }
}

// False: the listener is being closed. An error that waits makes others wait with it: it is for lack of descriptors.
bool Handshakes::wait_for_room() {
  std::unique_lock lock(mutex_);
  room_.wait(lock,
             [this] { return stopping_ || (ready_.size() < kReadyMax && (ready_.empty() || ready_.back().ok())); });
  return !stopping_;
}

void Handshakes::begin_some() {
  for (int i = 0; i < kBeginBatch; ++i) {
    if (!wait_for_room()) return;
    Result<UniqueFd> socket = silent_.next();
    if (!socket && !under_way_.empty()) {  // for lack of descriptors: the oldest gives its own
      end(under_way_.begin());
      continue;
    }
    if (!socket) return hand_over(socket.status());
    if (!*socket) return;
    set_connection_options(socket->get());
    auto channel = context_->open("");
    if (!channel) continue;
    if (under_way_.size() >= most_) end(under_way_.begin());
    const uint64_t key = next_key_++;
    if (!watch(socket->get(), key, false, EPOLL_CTL_ADD)) continue;
    const auto it = under_way_.emplace_hint(under_way_.end(), key,
                                            Handshake{std::move(*socket), std::move(*channel), now_ns(), false, false});
    step(it);
  }
}

void Handshakes::step(Iterator it) {
  Handshake& handshake = it->second;
  if (handshake.failed) return fail(it);
  const Result<bool> done = handshake.channel->handshake(handshake.socket.get());
  if (!done) {
    context_->note_refused(peer_address(handshake.socket.get()).to_string() + ": " + done.status().message());
    return fail(it);
  }
  if (*done) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handshake.socket.get(), nullptr);
    hand_over(Secured{std::move(handshake.socket), std::move(handshake.channel)});
    under_way_.erase(it);
    return;
  }
  const bool wants_write = handshake.channel->wants_write();
  if (wants_write == handshake.wants_write) return;
  handshake.wants_write = wants_write;
  watch(handshake.socket.get(), it->first, wants_write, EPOLL_CTL_MOD);
}

// Closing a socket with unread input would reset the connection, and the client would never read the alert. So the
// client's end is awaited, no longer than a handshake may take.
void Handshakes::fail(Iterator it) {
  const int fd = it->second.socket.get();
  if (!it->second.failed && ::shutdown(fd, SHUT_WR) != 0) return end(it);
  if (!it->second.failed) watch(fd, it->first, false, EPOLL_CTL_MOD);
  it->second.failed = true;
  it->second.channel.reset();
  std::array<std::byte, 4096> waste;
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = ::recv(fd, waste.data(), waste.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return end(it);
    if (got < 0) return;
  }
}

// Closing alone takes nothing out of epoll while a forked child has a copy of the descriptor.
void Handshakes::end(Iterator it) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.socket.get(), nullptr);
  under_way_.erase(it);
}

void Handshakes::drop_late(TimeNs now) {
  while (!under_way_.empty() && under_way_.begin()->second.since + kHandshakeMax <= now) end(under_way_.begin());
}

}  // namespace rrpc::provider::tcp
