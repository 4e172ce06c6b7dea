// What the thread with the polling token does with listeners: clients are let in a few at a time.
#include <sys/epoll.h>

#include <utility>

#include "base/helper_thread.h"
#include "driver/engine.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kAcceptPause = 100 * kMillisecond;   // when there are no descriptors left
constexpr TimeNs kEndsPause = 5 * kMillisecond;       // while connections wait for their destruction
constexpr TimeNs kAcceptSlice = 200 * kMicrosecond;   // then established connections get their turn
constexpr TimeNs kHandshakeMin = 100 * kMillisecond;  // that a client may take, however many others connect

}  // namespace

// One-shot, so that a listener which can't accept for lack of descriptors keeps nobody busy.
void Engine::watch_listener(uint64_t key, const ListenerEntry& entry, int operation) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u64 = key;
  epoll_ctl(epoll_fd_.get(), operation, entry.listener->wait_fd(), &event);
}

void Engine::add_listener(ListenerEntry entry) {
  const uint64_t key = next_connection_id() | kListenerBit;
  std::lock_guard lock(list_mutex_);
  const auto added = listeners_.emplace(key, std::make_shared<ListenerEntry>(std::move(entry))).first;
  watch_listener(key, *added->second, EPOLL_CTL_ADD);
}

void Engine::close_listeners() {
  std::lock_guard lock(list_mutex_);
  // Closing alone takes nothing out of epoll while a forked child has a copy of the descriptor.
  for (const auto& [key, entry] : listeners_) watch_listener(key, *entry, EPOLL_CTL_DEL);
  listeners_.clear();  // one that accept_all() is using goes when that is done
}

void Engine::accept_all(uint64_t key) {
  std::shared_ptr<ListenerEntry> entry;
  {
    std::lock_guard lock(list_mutex_);
    const auto it = listeners_.find(key);
    if (it == listeners_.end()) return;
    entry = it->second;
  }
  const TimeNs go_on_at = accept_some(*entry);
  std::lock_guard lock(list_mutex_);
  if (!listeners_.contains(key)) return;
  if (go_on_at == 0) return watch_listener(key, *entry, EPOLL_CTL_MOD);
  listeners_paused_ = true;
  wake_for_timers_at(go_on_at);
}

// Gives when to go on, 0: as soon as somebody connects.
TimeNs Engine::accept_some(const ListenerEntry& entry) {
  const TimeNs slice_end = now_ns() + kAcceptSlice;
  for (TimeNs now = now_ns(); now < slice_end; now = now_ns()) {
    // Whoever connects and leaves faster than connections can be destroyed waits in the backlog.
    if (waiting_behind(Behind::kEnds) > Connection::kEndingMax) return now + kEndsPause;
    if (const TimeNs wait_until = make_place_for_handshake(now); wait_until > now) return wait_until;
    const uint64_t id = next_connection_id();
    const auto connection = hooks_.accept(*entry.device, *entry.listener, id);
    if (!connection.ok()) {  // no descriptors left, say: who has ended or isn't established gives theirs back
      if (waiting_behind(Behind::kEnds) > 0) return now + kEndsPause;
      TimeNs may_go_at = 0;
      if (!drop_oldest_handshake(now, 0, may_go_at)) return now + kAcceptPause;
      continue;
    }
    if (*connection == nullptr) return 0;
    hooks_.admissions->begin(*connection, now);
    (*connection)->engine->add(*connection);
  }
  return 0;
}

// Where handshakes_max are under way the oldest ends, if it has had its time. Gives when it will have had it.
TimeNs Engine::make_place_for_handshake(TimeNs now) {
  if (!hooks_.admissions->full()) return 0;
  TimeNs may_go_at = 0;
  return drop_oldest_handshake(now, kHandshakeMin, may_go_at) ? 0 : may_go_at;
}

// False: there is none, or it is younger.
bool Engine::drop_oldest_handshake(TimeNs now, TimeNs age_min, TimeNs& may_go_at) {
  const ConnectionRef oldest = hooks_.admissions->take_oldest(now, age_min, may_go_at);
  if (oldest == nullptr) return false;
  {
    std::lock_guard lock(oldest->mutex);
    oldest->session().close(
        resource_exhausted("handshakes_max: " + std::to_string(hooks_.admissions->handshakes_max()) +
                           " clients were connecting, and others came"));
  }
  oldest->engine->remove(oldest);
  return true;
}

}  // namespace rrpc::driver
