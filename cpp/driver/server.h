// The answering end: listeners, connections, a ready queue, and workers that take from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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

class Server : public RequestSink {
 public:
  explicit Server(const Options& options);
  ~Server() override;

  // The address really bound.
  Result<std::string> listen(const std::string& address);

  // The next call to handle. kInterrupted: `interrupt` is set; see to it and ask again.
  NextResult next(Work& work, TimeNs deadline, const std::atomic<bool>& interrupt);
  // Every handle is answered once; NotFound otherwise.
  Status reply(uint64_t handle, rpc::Reply reply);
  bool find(uint64_t handle, Work& work);

  // Refuses new calls, waits for those under way, then ends. False: some were still running.
  bool drain(TimeNs deadline);
  void stop();
  bool ended() const { return ended_.load(); }
  bool belongs_to_parent() const { return fork_generation_ != fork_generation(); }

  size_t calls_running();
  size_t connection_count() const { return engine_->connection_count(); }

 private:
  void on_request(const ConnectionRef& connection, const rpc::ServerCallRef& call) override;
  Result<ConnectionRef> accept(DeviceEntry& device, provider::Listener& listener, uint64_t id);
  Result<ListenerEntry> open_listener(const std::string& scheme, const std::string& rest) const;
  std::string attach(ListenerEntry entry, rpc::HelloFields offers = {});
  // Listens in the other ways that rrpc:// may use; gives what HELLO says of them.
  Result<rpc::HelloFields> listen_beside(const std::string& bound, std::vector<ListenerEntry>& beside) const;
  Status offer_shm(rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const;
  Status offer_verbs(const std::string& bound, rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const;
  Status share_receives(ListenerEntry& entry) const;
  std::shared_ptr<endpoint::SharedRing> shared_ring(const provider::Listener& listener);
  bool take(Work& work);
  void note_handler_time(const Work& work);
  void settle(const ConnectionRef& connection, TimeNs now);
  bool all_quiet();
  void close_all(const std::string& reason);

  const Options options_;
  const int fork_generation_;
  const std::string instance_;
  std::mutex mutex_;
  std::deque<Work> ready_;
  std::unordered_map<uint64_t, Work> running_;
  uint64_t next_handle_ = 1;
  std::atomic<size_t> ready_count_{0};
  std::atomic<bool> draining_{false};
  std::atomic<bool> ended_{false};
  std::atomic<TimeNs> handler_ns_average_{0};
  std::unordered_map<const provider::Listener*, rpc::HelloFields> offers_;  // of listeners behind rrpc://
  std::unordered_map<const provider::Listener*, std::shared_ptr<endpoint::SharedRing>> shared_rings_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace rrpc::driver
