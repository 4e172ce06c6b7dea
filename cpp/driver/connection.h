// A session with what threads need: its mutex, who attends to it, who sleeps for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/recycler.h"
#include "base/unique_fd.h"
#include "driver/authorization.h"
#include "driver/devices.h"
#include "driver/introductions.h"
#include "driver/options.h"
#include "driver/start_pace.h"
#include "driver/timers.h"
#include "rpc/session.h"

namespace rrpc::driver {

class Engine;
class LoopQueue;
class Connection;
using ConnectionRef = std::shared_ptr<Connection>;

// What a server does with requests. Called with the connection's mutex held.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // As rpc::ServerSideEvents has them.
  virtual rpc::Refusal why_not(Connection& connection, std::string_view method, rpc::Asked asked, TimeNs now) = 0;
  virtual bool take_back(const Connection& connection, const rpc::ServerCallRef& call) = 0;
  virtual void on_request(const ConnectionRef& connection, const rpc::ServerCallRef& call) = 0;
  virtual void on_replies_taken(const Connection& connection) = 0;
  // A client said HELLO; an error refuses it. Nothing: that isn't known yet, and the connection is roused once it is.
  virtual std::optional<Status> admit(Connection& connection) = 0;
  // A stream that was parked may go on.
  virtual void resume(uint64_t handle) = 0;
};

// Who polls a connection:
//  kHot     the engine's polling thread, over and over;
//  kArmed   nobody: the peer's next message makes its wait handle ready, for which epoll waits;
//  kLeader  a caller that sleeps on the wait handle itself (no hand-over between threads);
//  kGone    nobody any more: the engine has let go of it.
// Whoever else touches the session, under the mutex, calls Engine::settle() before it lets go: then an armed
// connection is armed, and has nothing to do, whenever its mutex is free.
enum class Attendance : uint8_t { kHot, kArmed, kLeader, kGone };

// The mutex of a connection. Whoever takes it leaves a mark, by which the poller sees that its last look may be
// outdated.
class MarkedMutex {
 public:
  void lock() {
    mutex_.lock();
    touched_.store(true, std::memory_order_relaxed);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    touched_.store(true, std::memory_order_relaxed);
    return true;
  }
  void unlock() { mutex_.unlock(); }

  // Without it. What is done under it from clear_mark() on is seen sooner or later.
  bool touched() const { return touched_.load(std::memory_order_relaxed); }
  // With it.
  void clear_mark() { touched_.store(false, std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<bool> touched_{true};
};

class Connection : public std::enable_shared_from_this<Connection>, private rpc::SessionEvents {
 public:
  // Destroyed by the helper thread (Behind::kEnds), whoever has the last reference: that unmaps, closes descriptors,
  // calls the adapter's driver and may wait for the peer, which a poller has no time for.
  static ConnectionRef make(rpc::Role role, uint64_t id, DeviceEntry& device,
                            std::unique_ptr<provider::CompletionQueue> cq, std::unique_ptr<provider::QueuePair> qp,
                            const Options& options, rpc::HelloFields hello, RequestSink* sink,
                            endpoint::ReceiveShare share = {}) {
    return ConnectionRef(new Connection(role, id, device, std::move(cq), std::move(qp), options, std::move(hello), sink,
                                        std::move(share)),
                         destroy_behind);
  }
  // The adapter has its own back, though somebody may keep what is left of the connection for long.
  void release_device_behind();
  // So many may wait for their destruction before new ones are made.
  static constexpr size_t kEndingMax = 128;

  uint64_t id() const { return id_; }
  const Options& options() const { return options_; }
  std::string transport() const { return scheme_; }
  bool polls_cheaply() const { return polls_cheaply_; }
  bool handles_tell_all() const { return handles_tell_all_; }
  bool belongs_to_parent() const { return fork_generation_ != fork_generation(); }

  // Attends to it; its owner is whoever started it. Set once, before that.
  Engine* engine = nullptr;
  std::weak_ptr<Engine> attended_by;  // the same, once it attends

  // What a poller looks at in each of its rounds, in one cache line.
  // Guards everything below it up to `session`.
  alignas(64) MarkedMutex mutex;
  // Written under the mutex by the engine or a leader.
  std::atomic<Attendance> attendance{Attendance::kHot};
  std::atomic<TimeNs> last_active{0};
  std::atomic<TimeNs> loop_polled_at{0};  // by an event loop, in its own thread

  rpc::Session& session() { return session_; }
  // Of a connection beside a TLS connection that has told who the peer is: set before HELLO is sent. A server's that
  // must have one, and whose client brings none, is refused.
  std::optional<Introduced> introduced;
  bool needs_introduction = false;
  bool may_prove_user = false;  // at a server: the client is offered shared memory, where the kernel tells who it is
  bool sent_on = false;         // at a server: the client is told to go to another one
  // As the transport has proved it, or the TLS connection by which the peer was introduced.
  provider::PeerIdentity peer_identity();
  StartPace start_pace;
  Verdicts verdicts;  // at a server: of its policy on this client
  // Without the mutex.
  rpc::ClientCallRef new_call() const {
    return std::allocate_shared_for_overwrite<rpc::ClientCall>(RecyclingAllocator<rpc::ClientCall>(*memory_of_calls_));
  }
  TimeNs handshake_deadline = kNever;
  static Status unfinished_handshake() {
    return deadline_exceeded("the handshake was not finished in time; is the other end an rrpc one?");
  }
  // At a server: the database of users is being asked who the client is. When that began, and when to look at it again.
  bool awaits_user = false;
  TimeNs awaits_user_since = kNever;
  TimeNs look_again_at = kNever;
  Timer timer;  // when the engine is to look at it: no later than at any deadline of its own or of its session
  // At a server: when the client is told to connect again, and when the connection is closed after that.
  TimeNs retire_at = kNever;
  TimeNs close_at = kNever;
  bool retirable = false;  // a client's, which hasn't been told yet
  // At a server: when a connection is closed whose client has come again by another way. Written by Admissions.
  std::atomic<TimeNs> leave_at{kNever};
  // Tells the client to make new calls over another connection (GOAWAY). Calls under way go on until close_at.
  void retire(TimeNs now, const std::string& reason);
  // At a server: its client is not let in yet, or was refused.
  bool half_open() const { return !session_.ready() || refused_; }
  std::vector<provider::WaitHandle> wait_handles;  // what the engine's epoll set or the leader waits on
  bool in_epoll = false;                           // all of them, and none has been reported for the last time
  bool by_edges = false;  // how they were put there: each new thing is reported, again and again
  // Of which its messages raise one that the engine's poller knows: it needn't be armed. Null: of none.
  std::shared_ptr<provider::ReadyBits> ready_bits;
  bool leader_asleep = false;
  const void* leader_cause = nullptr;  // as a follower's
  // Event loops that have left it to the engine, to be told when it has something.
  std::vector<std::weak_ptr<LoopQueue>> loops_asleep;
  int leader_kick_fd = -1;  // an eventfd of its thread, while it is asleep
  void wake_leader();

  std::atomic<bool> ready{false};  // both ends said HELLO
  std::atomic<bool> closed{false};
  std::atomic<bool> usable{false};                 // ready, not closed, and the peer takes calls
  std::vector<std::function<void()>> on_unusable;  // run once, under the mutex
  bool in_hot_list = false;                        // guarded by the engine's token
  bool counted = false;                            // as let in, by Admissions, which guards it
  std::weak_ptr<Connection> place_of;              // whose it counts in; written once, by Admissions

  // Callers that sleep. Taken after `mutex`, never before it.
  std::mutex wait_mutex;
  struct Follower {
    std::condition_variable condition;
    const void* cause = nullptr;  // the call or the stream that it waits for; null: the connection
  };
  std::vector<Follower*> followers;
  std::atomic<size_t> follower_count{0};
  bool has_leader = false;

 private:
  Connection(rpc::Role role, uint64_t id, DeviceEntry& device, std::unique_ptr<provider::CompletionQueue> cq,
             std::unique_ptr<provider::QueuePair> qp, const Options& options, rpc::HelloFields hello, RequestSink* sink,
             endpoint::ReceiveShare share);
  ~Connection() override;
  static void destroy_behind(Connection* last);

  std::optional<Status> on_hello() override;
  void complete_hello(rpc::HelloFields& own) override;
  void on_ready() override;
  void on_closed(const Status& why) override;
  void on_no_more_calls() override;
  void on_call_done(const rpc::ClientCallRef& call) override;
  void on_request(const rpc::ServerCallRef& call) override;
  void on_replies_taken() override;
  void on_stream_changed(const rpc::StreamRef& stream) override;
  rpc::Refusal why_not(std::string_view method, rpc::Asked asked, TimeNs now) override {
    return sink_ == nullptr ? rpc::Refusal() : sink_->why_not(*this, method, asked, now);
  }
  bool take_back(const rpc::ServerCallRef& call) override { return sink_ != nullptr && sink_->take_back(*this, call); }
  void meet_server();
  void wake_sleepers(const void* cause);

  const uint64_t id_;
  const rpc::Role role_;
  const char* const scheme_;
  const int fork_generation_;
  const Options options_;
  RequestSink* const sink_;
  bool refused_ = false;
  const Recycler::Owner memory_of_calls_ = Recycler::make();
  rpc::Session session_;
  const bool polls_cheaply_;
  const bool handles_tell_all_;
};

}  // namespace rrpc::driver
