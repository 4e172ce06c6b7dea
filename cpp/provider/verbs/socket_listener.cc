#include "provider/verbs/socket_listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "provider/verbs/queue_pair.h"
#include "provider/verbs/shared_receive_queue.h"
#include "provider/verbs/socket_connector.h"

namespace rrpc::provider::verbs {
namespace {

constexpr size_t kNewcomersMax = 256;
constexpr TimeNs kIntroductionTimeout = 10 * kSecond;

Status watch_fd(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? Status()
                                                          : Status::from_errno(errno, "cannot watch a socket");
}

bool concerns_one_attempt(int error) {
  return error == ECONNABORTED || error == EPROTO || error == EINTR || error == ENETDOWN || error == EHOSTUNREACH ||
         error == ENETUNREACH;
}

}  // namespace

SocketListener::SocketListener(UniqueFd socket, Address wanted)
    : socket_(std::move(socket)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      watch_(epoll_create1(EPOLL_CLOEXEC)),
      wanted_(std::move(wanted)),
      address_(local_address(socket_.get()).to_string()) {}

Status SocketListener::watch() {
  if (!timer_ || !watch_) return Status::from_errno(errno, "cannot listen on " + address_);
  RRPC_RETURN_IF_ERROR(watch_fd(watch_.get(), socket_.get()));
  return watch_fd(watch_.get(), timer_.get());
}

Result<std::unique_ptr<Listener>> SocketListener::create(const Address& address, const ListenOptions& options) {
  RRPC_RETURN_IF_ERROR(Adapters::process().any_usable());
  RRPC_ASSIGN_OR_RETURN(const auto candidates, resolve(address.target, ResolveFor::kListen, kNever));
  Status first_error;
  for (const SocketAddress& candidate : candidates) {
    // What no peer could be served with is said now and not to each of them.
    if (Result<Place> place = choose_place(address, candidate); !place.ok()) return place.status();
    Result<UniqueFd> socket = listen_on(candidate, address.target, options.backlog);
    if (socket.ok()) {
      std::unique_ptr<SocketListener> made(new SocketListener(std::move(socket).value(), address));
      RRPC_RETURN_IF_ERROR(made->watch());
      return std::unique_ptr<Listener>(std::move(made));
    }
    if (first_error.ok()) first_error = socket.status();
  }
  return first_error;
}

Status SocketListener::welcome() {
  while (true) {
    UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (concerns_one_attempt(errno)) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      return Status::from_errno(errno, "cannot accept a connection on " + address_);
    }
    set_connection_options(fd.get());
    if (newcomers_.size() >= kNewcomersMax) drop(newcomers_.begin(), "too many peers wait to be introduced");
    RRPC_RETURN_IF_ERROR(watch_fd(watch_.get(), fd.get()));
    newcomers_.push_back({FrameSocket(std::move(fd)), deadline_after(now_ns(), kIntroductionTimeout)});
  }
}

void SocketListener::drop(std::list<Newcomer>::iterator newcomer, const std::string& reason) {
  newcomer->socket.send(goodbye_frame(reason));
  newcomer->socket.finish();
  newcomers_.erase(newcomer);  // closed, so no longer watched
}

void SocketListener::turn_away_the_late() {
  const TimeNs now = now_ns();
  while (!newcomers_.empty() && newcomers_.front().deadline <= now) {
    drop(newcomers_.begin(), "the queue pair was not introduced in time");
  }
  itimerspec alarm{};  // zero: none
  if (!newcomers_.empty()) {
    const TimeNs deadline = newcomers_.front().deadline;
    alarm.it_value = {.tv_sec = deadline / kSecond, .tv_nsec = deadline % kSecond};
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &alarm, nullptr);
}

Result<std::unique_ptr<QueuePair>> SocketListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  const Status welcomed = welcome();
  turn_away_the_late();
  for (auto one = newcomers_.begin(); one != newcomers_.end();) {
    const auto newcomer = one++;
    const Result<std::optional<Frame>> frame = newcomer->socket.receive();
    if (frame.ok() && !frame->has_value()) continue;
    const Result<Introduction> peer = frame.ok() ? parse_introduction(**frame) : frame.status();
    if (!peer.ok()) {
      drop(newcomer, peer.status().message());
      continue;
    }
    epoll_ctl(watch_.get(), EPOLL_CTL_DEL, newcomer->socket.fd(), nullptr);
    FrameSocket socket = std::move(newcomer->socket);
    newcomers_.erase(newcomer);
    auto connector = SocketConnector::answer(std::move(socket), *peer, wanted_);
    if (!connector.ok()) continue;  // the peer was told
    return VerbsQueuePair::create(cq, config, std::move(connector).value());
  }
  RRPC_RETURN_IF_ERROR(welcomed);
  return std::unique_ptr<QueuePair>();
}

Result<std::unique_ptr<SharedReceiveQueue>> SocketListener::create_shared_receive_queue(uint32_t depth) {
  RRPC_ASSIGN_OR_RETURN(const Place place, choose_place(wanted_, local_address(socket_.get())));
  return VerbsSharedReceiveQueue::create(*place.adapter, depth);
}

}  // namespace rrpc::provider::verbs
