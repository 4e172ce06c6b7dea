// The polling of many connections by whoever has time: server workers, or the engine's own thread.
//
// One thread at a time has the polling token. It polls the hot connections; when they stay quiet it arms
// them and sleeps in epoll. A worker that leaves with a request wakes nobody: the engine's thread ticks
// while there is anything hot and takes over when the token lies idle, so the fast path has no hand-over.
// docs/threads.md tells the whole story.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "driver/connection.h"

namespace rrpc::driver {

// A listening socket in the engine's epoll set.
struct ListenerEntry {
  std::unique_ptr<provider::Listener> listener;
  DeviceEntry* device = nullptr;
};

class Engine {
 public:
  // `work_waits`: whether something waits for a worker (a server's ready queue).
  struct Hooks {
    std::function<bool()> work_waits;
    std::function<ConnectionRef(DeviceEntry&, provider::Listener&, uint64_t id)> accept;
    std::function<void(const ConnectionRef&)> on_removed;
  };

  explicit Engine(Hooks hooks = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  uint64_t next_connection_id() { return next_id_.fetch_add(1); }
  // Starts to attend to a connection. It stays until it has failed and is quiet, or is removed.
  void add(const ConnectionRef& connection);
  void remove(const ConnectionRef& connection);
  void add_listener(ListenerEntry entry);
  void close_listeners();
  std::vector<ConnectionRef> connections() const;
  size_t connection_count() const;

  // A caller goes to sleep on the connection's own handles; and comes back. Mutex of the connection held.
  void detach(Connection& connection);
  void reattach(Connection& connection);
  // A deadline that nobody may be waiting for.
  void note_deadline(TimeNs deadline);

  // For workers. Polls, spins, sleeps until work waits, the engine is woken by wake_workers(), `interrupt` is
  // set, or the deadline passes. False at once when another thread has the token.
  bool attend(TimeNs spin, TimeNs deadline, const std::atomic<bool>& interrupt);
  void worker_waits(TimeNs deadline);  // for the token or for work, asleep
  void wake_workers();
  void wake_one_worker();
  // Before a slow handler: a waiting worker, if any, takes over the polling.
  void offer_token();
  void stop();
  bool stopped() const { return stopping_.load(); }

  // Process-wide: run by the engine's threads, without locks, when `flag` is set (releases Python objects).
  static void set_deferred_hook(std::atomic<bool>* flag, std::function<void()> run);

 private:
  void run();
  bool tick_for_workers();
  size_t poll_hot(TimeNs now);
  bool poll_one(const ConnectionRef& connection, TimeNs now, size_t& handled);
  void arm_hot(TimeNs now, TimeNs idle_since);
  bool try_arm(const ConnectionRef& connection, TimeNs now);
  void wait_events(TimeNs deadline);
  void accept_all(uint64_t key);
  void make_hot(uint64_t id);
  void enable_epoll(Connection& connection);
  void disable_epoll(Connection& connection);
  void run_timers(TimeNs now);
  void kick();
  void adopt_new_hot();
  TimeNs wake_time(TimeNs deadline) const;
  bool deferred_waits() const;

  const Hooks hooks_;
  UniqueFd epoll_fd_;
  UniqueFd wake_fd_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> stopping_{false};

  std::mutex token_;  // the right to poll: guards hot_
  std::vector<ConnectionRef> hot_;

  mutable std::mutex list_mutex_;
  std::unordered_map<uint64_t, ConnectionRef> connections_;
  std::unordered_map<uint64_t, std::shared_ptr<ListenerEntry>> listeners_;
  std::vector<ConnectionRef> new_hot_;
  std::atomic<bool> has_new_hot_{false};

  std::atomic<TimeNs> next_timer_{kNever};
  std::atomic<TimeNs> asleep_until_{0};  // of the thread in epoll_wait; 0: none is

  std::mutex worker_mutex_;
  std::condition_variable worker_condition_;
  std::condition_variable driver_condition_;
  std::atomic<bool> has_workers_{false};
  std::atomic<bool> worker_asleep_{false};  // in epoll, with the token
  int workers_waiting_ = 0;
  bool token_offered_ = false;

  std::thread thread_;
};

}  // namespace rrpc::driver
