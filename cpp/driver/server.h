// The answering end: listeners, connections, a ready queue, and workers that take from it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver/address.h"
#include "driver/authorization.h"
#include "driver/connection.h"
#include "driver/engine.h"
#include "driver/handler_times.h"
#include "driver/held_replies.h"
#include "driver/loop_queue.h"
#include "driver/rails.h"
#include "driver/stream.h"
#include "driver/work_queue.h"

namespace rrpc::driver {

enum class NextResult : uint8_t { kWork, kTimeout, kEnded, kInterrupted };

enum class OnCancel : uint8_t { kKept, kCancelled, kAnswered };

// What became of a handler's answer: `instead`, unless OK, is why the client doesn't get it.
struct Answered {
  Lane lane = Lane::kWorkers;
  Status instead;
  TimeNs took = 0;  // since a worker took the call
};

// What a drained server had to leave: calls without their answer, and results that clients didn't fetch.
struct LeftOver {
  size_t calls = 0;
  size_t results = 0;
};

class Server : public RequestSink {
 public:
  explicit Server(const Options& options);
  ~Server() override;

  // The address really bound.
  Result<std::string> listen(const std::string& address);
  // An address that takes no calls: its clients are sent on, in turn, to where redirect() says. A target is a port at
  // the same host, or for shm:// what follows the socket's path and a dot. While there is none, clients are refused.
  Result<std::string> listen_for_others(const std::string& address);
  Status redirect(const std::string& bound, std::vector<std::string> targets);

  // Who may call which method, from the next call on. Null: everybody may call everything.
  void set_policy(std::shared_ptr<const Policy> policy) { authorization_.set(std::move(policy)); }
  // For a call that is being handled, with the subject of its token: why it is refused; empty where it isn't.
  std::string why_denied(uint64_t handle, std::string_view token_subject);
  Authorization& authorization() { return authorization_; }
  // More that HELLO says to clients who connect from now on; in the smallest slots there may be no room for it.
  void add_to_hello(rpc::HelloFields fields);

  // The next call of the lane to handle. kInterrupted: `interrupt` is set; see to it and ask again.
  // Replies that are held go out unless there is work at once: before a handler that may take long the worker sends
  // them.
  NextResult next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt, Lane lane = Lane::kWorkers,
                  HeldReplies* held = nullptr);
  // Before listening: calls of these methods (names) go to a worker of their own, and wait for no other.
  void serve_apart(const std::vector<std::string>& methods) { work_.route(Lane::kBuiltin, methods, 1); }
  // Before listening: calls of these methods (names) go to an event loop, so many at a time. The loop, which
  // polls for calls from now on, is pushed `news` when there are some; the workers wait to be told of theirs.
  // `all`: there are no workers. The loop gets what names no method, too, and any number of those served apart.
  void serve_in_loop(std::shared_ptr<LoopQueue> loop, LoopItemRef news, const std::vector<std::string>& methods,
                     uint32_t max_concurrency, bool all);
  // In the loop's thread: the calls that it is to handle now.
  std::vector<Work> next_in_loop();
  // Every handle is answered once; NotFound otherwise.
  // `held`: the worker asks for its next call at once. Where calls wait, the reply may wait for the next one.
  Result<Answered> reply(uint64_t handle, rpc::Reply reply, HeldReplies* held = nullptr);
  // The streams of a call that is being handled.
  Result<std::unique_ptr<Stream>> stream(uint64_t handle);
  // Its worker lets go of a call with streams: next() gives the handle again (Work::resumed) once there is room for the
  // item that there was none for, or the call has ended.
  Status park(uint64_t handle);
  // The same, but next() gives the handle only after bring_back(), from any thread.
  Status set_aside(uint64_t handle);
  void bring_back(uint64_t handle);
  // A handler that waits lends its place to other calls, but keeps its thread: a worker more is needed meanwhile.
  // take_up() waits until it may go on, since no more than max_concurrency run at a time.
  Status lend(uint64_t handle);
  void take_up(uint64_t handle) { work_.take_up(handle, ended_); }
  bool find(uint64_t handle, Work& work) { return work_.find(handle, work); }
  // Runs `callback` when the call is given up, maybe under the mutex; it is dropped with the reply.
  [[nodiscard]] OnCancel on_cancel(uint64_t handle, std::function<void()> callback);

  // Why certificates that have changed can't be used, so that the old ones still are; empty: nothing is wrong.
  std::string tls_problem();
  provider::TlsContext::Refusals tls_refusals();
  // No new clients; those that are connected go on.
  void stop_listening() { engine().close_listeners(); }
  // Tells `count` of the clients, those connected longest, to connect again; gives how many were told. Clients that
  // were told before don't count.
  size_t send_away(size_t count, const std::string& reason);
  // Refuses new calls, waits for those under way and for their results to be fetched; then stop() is to come.
  // Once `interrupted` says so, which is asked now and then, it waits no longer.
  LeftOver drain(TimeNs deadline, const std::function<bool()>& interrupted = {});
  void stop();
  bool on_own_thread() const;
  bool ended() const { return ended_.load(); }

  // For a client whose server calls back: the connection is attended to by this server's engine, and its requests come
  // here. Before the connection starts, with its mutex held.
  void prepare(Connection& connection);
  // The one that workers poll. It has the listeners, and the connections unless pollers of their own have them.
  Engine& engine() { return *engines_.front(); }
  bool belongs_to_parent() const { return fork_generation_ != fork_generation(); }

  size_t calls_running() { return work_.waiting_or_running(); }
  size_t calls_waiting() { return work_.waiting(); }
  size_t connection_count() const;

 private:
  struct Redirect {
    std::vector<std::string> targets;
    size_t next = 0;
  };

  static std::string random_text();
  rpc::Refusal why_not(Connection& connection, std::string_view method, rpc::Asked asked, TimeNs now) override;
  void on_request(const ConnectionRef& connection, const rpc::ServerCallRef& call) override;
  void on_replies_taken(const Connection& connection) override;
  std::optional<Status> admit(Connection& connection) override;
  Status admit_known(Connection& connection);
  bool knows_user(Connection& connection);
  void resume(uint64_t handle) override;
  bool take_back(const Connection& connection, const rpc::ServerCallRef& call) override;
  bool is_loops(Lane lane) const { return lane == Lane::kLoop || (lane == Lane::kBuiltin && all_in_loop_); }
  bool work_waits() const { return work_.has_takeable(Lane::kWorkers); }
  rpc::HelloFields hello_of(const provider::Listener& listener);
  Result<ConnectionRef> accept(DeviceEntry& device, provider::Listener& listener, uint64_t id);
  Result<ListenerEntry> open_first(const Address& address);
  Result<ListenerEntry> open_listener(const std::string& scheme, const std::string& rest,
                                      std::shared_ptr<provider::TlsContext> tls = nullptr) const;
  std::string attach(ListenerEntry entry, rpc::HelloFields offers = {}, bool beside_tls = false);
  Status meet_again(Connection& connection);
  void offer_rails(Connection& connection);
  void join_rail(const endpoint::RailOffer& offer, endpoint::RailQueues queues, const std::string& scheme);
  bool must_be_introduced(const provider::Listener& listener);
  bool offers_shm(const provider::Listener& listener);
  Result<std::shared_ptr<provider::TlsContext>> tls_for(const Address& address);
  std::shared_ptr<provider::TlsContext> tls();
  // Listens in the other ways that clients of the address may move to; gives what HELLO says of them.
  Result<rpc::HelloFields> listen_beside(const Address& address, const std::string& bound,
                                         std::vector<ListenerEntry>& beside) const;
  Status offer_shm(rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const;
  Status offer_verbs(const Address& address, const std::string& bound, rpc::HelloFields& hello,
                     std::vector<ListenerEntry>& beside) const;
  rpc::HelloFields more_hello();
  Status start_engines();
  Engine& engine_for(const std::string& scheme, const std::string& peer);
  std::vector<ConnectionRef> connections() const;
  Status share_receives(ListenerEntry& entry) const;
  std::shared_ptr<endpoint::SharedRing> shared_ring(const provider::Listener& listener);
  NextResult find_next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt, Lane lane, HeldReplies* held);
  bool take(Lane lane, Work& work);
  bool too_late(const Work& work);
  bool wait_for_turn(Lane lane, TimeNs deadline);
  void announce(Lane lane);
  void tell_loop();
  void set_aside(const Work& work);
  void refuse_displaced();
  Status answer(const Work& work, rpc::Reply reply, HeldReplies* held = nullptr);
  LeftOver under_way();
  bool all_drained();
  void close_all(const std::string& reason);

  const Options options_;
  const int fork_generation_;
  const std::string instance_;
  std::mutex mutex_;
  WorkQueue work_;
  Authorization authorization_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> ended_{false};
  HandlerTimes handler_times_;
  rpc::HelloFields more_hello_;
  std::unordered_map<const provider::Listener*, rpc::HelloFields> offers_;  // of listeners behind rrpc://
  std::unordered_map<const provider::Listener*, std::shared_ptr<endpoint::SharedRing>> shared_rings_;
  std::map<std::string, Redirect> redirects_;       // by the listener's own address
  std::set<const provider::Listener*> beside_tls_;  // whose clients must be introduced
  std::shared_ptr<provider::TlsContext> tls_;
  Introductions introductions_;
  RailTokens rail_tokens_;
  const std::shared_ptr<Admissions> admissions_;
  std::vector<std::shared_ptr<Engine>> engines_;  // the workers', then those that poll alone
  std::atomic<bool> in_loop_{false};              // a loop polls for calls: this one
  std::atomic<bool> all_in_loop_{false};
  std::shared_ptr<LoopQueue> loop_;
  LoopItemRef loop_news_;
  std::atomic<bool> loop_told_{false};
  std::mutex turn_mutex_;  // for workers, where a loop polls
  std::array<std::condition_variable, kLanes.size()> turns_;
};

}  // namespace rrpc::driver
