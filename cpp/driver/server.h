// The answering end: listeners, connections, a ready queue, and workers that take from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver/address.h"
#include "driver/connection.h"
#include "driver/engine.h"

namespace rrpc::driver {

struct Work {
  uint64_t handle = 0;
  ConnectionRef connection;
  rpc::ServerCallRef call;
  TimeNs taken_at = 0;
};

enum class NextResult : uint8_t { kWork, kTimeout, kEnded, kInterrupted };

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

  // More that HELLO says to clients who connect from now on; in the smallest slots there may be no room for it.
  void add_to_hello(rpc::HelloFields fields);

  // The next call to handle. kInterrupted: `interrupt` is set; see to it and ask again.
  NextResult next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt);
  // Every handle is answered once; NotFound otherwise.
  Status reply(uint64_t handle, rpc::Reply reply);
  bool find(uint64_t handle, Work& work);

  // Refuses new calls, waits for those under way and for their results to be fetched, then ends.
  LeftOver drain(TimeNs deadline);
  void stop();
  bool ended() const { return ended_.load(); }
  bool belongs_to_parent() const { return fork_generation_ != fork_generation(); }

  size_t calls_running();  // and waiting for that
  size_t calls_waiting();  // for a worker
  size_t connection_count() const { return engine_->connection_count(); }

 private:
  using WorkByHandle = std::map<uint64_t, Work>;
  struct Redirect {
    std::vector<std::string> targets;
    size_t next = 0;
  };

  Status why_full() override;
  void on_request(const ConnectionRef& connection, const rpc::ServerCallRef& call) override;
  bool take_back(const rpc::ServerCallRef& call) override;
  Status why_full_locked() const;
  size_t count_takeable() const;
  rpc::HelloFields hello_of(const provider::Listener& listener);
  Result<ConnectionRef> accept(DeviceEntry& device, provider::Listener& listener, uint64_t id);
  Result<ListenerEntry> open_listener(const std::string& scheme, const std::string& rest) const;
  std::string attach(ListenerEntry entry, rpc::HelloFields offers = {});
  // Listens in the other ways that rrpc:// may use; gives what HELLO says of them.
  Result<rpc::HelloFields> listen_beside(const std::string& bound, std::vector<ListenerEntry>& beside) const;
  Status offer_shm(rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const;
  Status offer_verbs(const std::string& bound, rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const;
  rpc::HelloFields more_hello();
  Status share_receives(ListenerEntry& entry) const;
  std::shared_ptr<endpoint::SharedRing> shared_ring(const provider::Listener& listener);
  bool take(Work& work);
  void note_handler_time(const Work& work);
  void settle(const ConnectionRef& connection, TimeNs now);
  LeftOver under_way();
  void close_all(const std::string& reason);

  const Options options_;
  const int fork_generation_;
  const std::string instance_;
  std::mutex mutex_;
  WorkByHandle ready_;  // handles rise, so the oldest call is the first
  WorkByHandle running_;
  uint64_t next_handle_ = 1;
  std::atomic<size_t> takeable_{0};  // of ready_, as many as may run now
  std::atomic<bool> draining_{false};
  std::atomic<bool> ended_{false};
  std::atomic<TimeNs> handler_ns_average_{0};
  rpc::HelloFields more_hello_;
  std::unordered_map<const provider::Listener*, rpc::HelloFields> offers_;  // of listeners behind rrpc://
  std::unordered_map<const provider::Listener*, std::shared_ptr<endpoint::SharedRing>> shared_rings_;
  std::map<std::string, Redirect> redirects_;  // by the listener's own address
  std::unique_ptr<Engine> engine_;
};

}  // namespace rrpc::driver
