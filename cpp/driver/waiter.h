// A thread that waits for something of a connection: it polls for it itself, then sleeps. docs/threads.md says why no
// wake-up is lost.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/connection.h"
#include "driver/engine.h"
#include "driver/spinner.h"

namespace rrpc::driver {

enum class WaitResult : uint8_t { kDone, kTimeout, kInterrupted };

class Waiter {
 public:
  // `cause`: the call or the stream that is waited for; null: the connection itself.
  Waiter(Engine& engine, const ConnectionRef& connection, const void* cause, TimeNs deadline,
         const std::atomic<bool>& interrupt)
      : engine_(engine), connection_(connection), cause_(cause), deadline_(deadline), interrupt_(interrupt) {}

  // Until `done()`, which may be asked without the connection's mutex. `watch()` is called with it before this thread
  // sleeps: whoever brings the thing about must wake sleepers from then on. kInterrupted: a signal came or the
  // interrupt is set; see to it and wait again.
  template <typename Done, typename Watch>
  WaitResult wait(Done done, Watch watch) {
    const WaitResult result = poll_then_sleep(done, watch);
    if (result != WaitResult::kInterrupted) hand_over();
    return result;
  }

 private:
  template <typename Done, typename Watch>
  WaitResult poll_then_sleep(Done done, Watch watch) {
    Connection& connection = *connection_;
    TimeNs now = now_ns();
    const TimeNs slice_end = now + kBusySlice;
    const TimeNs spin = connection.options().spin_ns();
    TimeNs spin_until = deadline_after(now, spin);
    const bool may_spin = spin_until > now;
    const bool may_sleep = spin_until != kNever;
    Spinner spinner;
    Turn turn(*this);
    while (true) {
      size_t handled = 0;
      bool bytes_moved = false;
      if (std::unique_lock lock(connection.mutex, std::try_to_lock); lock) {
        if (may_spin) turn.take();
        connection.start_pace.waits(now);
        handled = poll(now);
        bytes_moved = handled > 0 && connection.session().endpoint().moved_bytes();
        if (done()) {
          engine_.settle(connection_, now);
          return WaitResult::kDone;
        }
      } else if (done()) {
        return WaitResult::kDone;  // whoever has the mutex has polled since and settles
      }
      if (handled > 0)
        spinner.found_something();
      else if (may_spin && !spinner.pause())
        continue;
      now = now_ns();
      if (bytes_moved) spin_until = deadline_after(now, spin);
      if (now >= deadline_ || now >= slice_end || interrupt_.load(std::memory_order_relaxed)) break;
      if (now >= spin_until || (may_sleep && Spinner::crowded(now))) break;
    }
    turn.give_back();
    {
      std::lock_guard lock(connection.mutex);
      engine_.settle(connection_, now);
      if (done()) return WaitResult::kDone;
      if (now >= deadline_) return WaitResult::kTimeout;
      if (now >= slice_end || interrupt_.load(std::memory_order_relaxed)) return WaitResult::kInterrupted;
      watch();  // under the mutex: whoever brings it about sees it
    }
    return sleep(done);
  }

  static constexpr TimeNs kFollowerNap = 50 * kMillisecond;
  static constexpr TimeNs kBusySlice = 50 * kMillisecond;

  // While this thread polls an armed connection.
  class Turn {
   public:
    explicit Turn(Waiter& waiter) : waiter_(waiter) {}
    ~Turn() { give_back(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // With the connection's mutex.
    void take() { taken_ = taken_ || waiter_.engine_.take_over(*waiter_.connection_); }
    // Without.
    void give_back() {
      if (!std::exchange(taken_, false)) return;
      std::lock_guard lock(waiter_.connection_->mutex);
      waiter_.engine_.give_back(waiter_.connection_, now_ns());
    }

   private:
    Waiter& waiter_;
    bool taken_ = false;
  };

  size_t poll(TimeNs now) {
    const size_t handled = connection_->session().progress(now);
    if (handled > 0) connection_->last_active.store(now, std::memory_order_relaxed);
    return handled;
  }

  template <typename Done>
  WaitResult sleep(Done done) {
    Connection& connection = *connection_;
    std::unique_lock wait_lock(connection.wait_mutex);
    if (connection.has_leader) return sleep_as_follower(done, wait_lock);
    connection.has_leader = true;
    wait_lock.unlock();
    const WaitResult result = sleep_as_leader(done);
    wait_lock.lock();
    connection.has_leader = false;
    return result;
  }

  // One who leaves for good while nobody leads has a follower take over.
  void hand_over() {
    if (connection_->follower_count.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard lock(connection_->wait_mutex);
    if (!connection_->has_leader && !connection_->followers.empty())
      connection_->followers.front()->condition.notify_one();
  }

  template <typename Done>
  WaitResult sleep_as_leader(Done done) {
    Connection& connection = *connection_;
    std::vector<provider::WaitHandle>& handles = connection.wait_handles;
    std::vector<pollfd> fds;
    std::unique_lock lock(connection.mutex);
    engine_.detach(connection);
    connection.leader_cause = cause_;
    const int kick_fd = connection.leader_kick_fd = kick_fd_of_this_thread();
    WaitResult result = WaitResult::kDone;
    bool signalled = false;
    while (true) {
      const TimeNs now = now_ns();
      connection.session().arm();
      const size_t handled = poll(now);
      connection.session().tick(now);
      if (done()) break;
      result = WaitResult::kTimeout;
      if (now >= deadline_) break;
      result = WaitResult::kInterrupted;
      if (signalled || interrupt_.load() || connection.closed.load()) break;
      result = WaitResult::kDone;
      if (handled > 0) continue;
      handles.clear();
      connection.session().endpoint().append_wait_handles(handles);
      fds.assign(1, {kick_fd, POLLIN, 0});
      if (std::ranges::any_of(handles, [](const auto& h) { return h.fd == provider::WaitHandle::kPollAgain; }))
        continue;
      for (const auto& handle : handles)
        fds.push_back({handle.fd, static_cast<short>(handle.want_write ? POLLIN | POLLOUT : POLLIN), 0});
      const TimeNs left =
          std::max<TimeNs>(std::min({deadline_, connection.session().next_tick(), now + kSecond}) - now, 0);
      const timespec timeout{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
      connection.leader_asleep = true;
      lock.unlock();
      const int ready = ppoll(fds.data(), fds.size(), &timeout, nullptr);
      // A signal that came before this thread slept woke nobody: the caller looks for it when time has passed, too.
      signalled = ready == 0 || (ready < 0 && errno == EINTR);
      lock.lock();
      connection.leader_asleep = false;
      eventfd_t kicks = 0;
      if (ready > 0 && (fds[0].revents & POLLIN) != 0) (void)eventfd_read(kick_fd, &kicks);
      if (ready > 0) connection.session().endpoint().look_at_wait_handles();
    }
    engine_.reattach(connection_);
    return result;
  }

  // For a moment only: what else there is to see to (signals, say) no other thread can tell of.
  template <typename Done>
  WaitResult sleep_as_follower(Done done, std::unique_lock<std::mutex>& wait_lock) {
    Connection& connection = *connection_;
    const TimeNs nap = std::min(kFollowerNap, std::max<TimeNs>(deadline_ - now_ns(), 0));
    Connection::Follower self;
    self.cause = cause_;
    connection.followers.push_back(&self);
    ++connection.follower_count;
    self.condition.wait_for(wait_lock, std::chrono::nanoseconds(nap),
                            [&] { return done() || !connection.has_leader || connection.closed.load(); });
    std::erase(connection.followers, &self);
    --connection.follower_count;
    if (done()) return WaitResult::kDone;
    return now_ns() >= deadline_ ? WaitResult::kTimeout : WaitResult::kInterrupted;
  }

  // A thread leads one connection at a time, so that one eventfd for each thread will do. A forked child's is its own.
  static int kick_fd_of_this_thread();

  Engine& engine_;
  const ConnectionRef& connection_;
  const void* const cause_;
  const TimeNs deadline_;
  const std::atomic<bool>& interrupt_;
};

}  // namespace rrpc::driver
