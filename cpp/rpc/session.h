// One connection's protocol: handshake, keep-alive, draining, and the two halves that call and answer.
// No I/O of its own; time is passed in. Not thread-safe: the driver holds the connection's mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "endpoint/endpoint.h"
#include "rpc/client_side.h"
#include "rpc/messages.h"
#include "rpc/options.h"
#include "rpc/server_side.h"

namespace rrpc::rpc {

enum class Role : uint8_t { kClient, kServer };

class SessionEvents : public ClientSideEvents, public ServerSideEvents, public StreamEvents {
 public:
  // Of a server: the client said HELLO. An error refuses it: the answer says why, and no calls are taken. Nothing: that
  // isn't known yet. The client has no answer then, and each progress() asks again.
  virtual std::optional<Status> on_hello() { return Status(); }
  // Of both: more for this end's HELLO, which is about to be sent. A server knows the client's.
  virtual void complete_hello(HelloFields& /*own*/) {}
  virtual void on_ready() = 0;        // both ends said HELLO
  virtual void on_no_more_calls() {}  // the peer takes no new ones, or the connection failed: before calls end of it
  virtual void on_closed(const Status& why) = 0;
};

class Session : private endpoint::EndpointEvents {
 public:
  Session(Role role, endpoint::DeviceContext context, std::unique_ptr<provider::CompletionQueue> cq,
          std::unique_ptr<provider::QueuePair> qp, const SessionOptions& options, uint32_t epoch, HelloFields hello,
          SessionEvents& events, endpoint::ReceiveShare share = {});
  ~Session() override;

  Status start(TimeNs now);
  // Polls once and delivers what came; where there is no memory for that, the connection ends. Gives how much was done;
  // 0: nothing is left to do now.
  size_t progress(TimeNs now);
  // Sends what waits for something to share a message or a doorbell with.
  void send_held();
  // Keep-alive, deadlines, leases, fetches that stall. After progress(), so that a process that slept long hears its
  // peer first.
  void tick(TimeNs now);
  TimeNs next_tick() const;
  // Before this end sleeps; poll once more afterwards.
  void arm() { server_.awaits_done() ? endpoint_.arm() : endpoint_.arm_for_solicited(); }
  // The ready bit of a connection isn't enough: its poller sleeps for solicited messages only.
  bool must_be_armed() const { return server_.awaits_done(); }
  // More of HELLO, before it is sent. A field for which the slot has no room is left out.
  void add_to_hello(HelloFields fields) { more_hello_ = std::move(fields); }
  // From HELLO on every message and every fetched range is authenticated, and encrypted where the mode says so, by keys
  // that come from the secret, the mode, both epochs and both HELLOs: a HELLO that was changed on its way ends the
  // connection. The secret should be this connection's alone; the epochs, which are random, stand in for that.
  // Both ends call it alike, once: a server in on_hello() or on_ready(), a client in on_ready() before it does anything
  // else. Without `ciphers` only where the mode needs none.
  void protect(provider::Protection mode, std::shared_ptr<const provider::CipherFactory> ciphers,
               const provider::ExportedKey& secret, const endpoint::KeyLimits& limits = {});
  provider::Protection protection() const { return protection_; }
  // Refuses calls of the peer from now on and tells it so.
  void drain(const std::string& reason);
  // Since drain(): no new call is on its way any more.
  bool drained() const { return drained_; }
  // What waits to be sent goes first.
  void close(const Status& reason);
  // Runs on any thread when memory that a fetch waits for was granted: progress() begins it then.
  void set_on_granted(std::function<void()> on_granted) { landing_.set_on_granted(std::move(on_granted)); }

  bool ready() const { return ready_; }
  bool failed() const { return endpoint_.failed(); }
  const Status& failure() const { return endpoint_.failure(); }
  // Of a failed session: nothing is left to say, or whose memory a device may touch.
  bool quiet() const {
    return endpoint_.transfers_idle() && !endpoint_.lingering() && endpoint_.revocations_under_way() == 0;
  }
  // Which half serves: a server takes calls, a client makes them; both do both where the client's HELLO has `serves`.
  bool takes_calls() const { return takes_calls_; }
  bool makes_calls() const { return makes_calls_; }
  const HelloFields& peer_hello() const { return peer_hello_; }
  endpoint::Endpoint& endpoint() { return endpoint_; }
  ClientSide& client() { return client_; }
  ServerSide& server() { return server_; }
  Streams& streams() { return streams_; }

 private:
  void on_established() override;
  Status on_message(uint8_t type, Bytes body) override;
  Status on_other_message(uint8_t type, Bytes body);
  void on_transfer_finished(uint64_t cookie, provider::WcStatus status) override;
  void on_failed(const Status& status) override;
  Status on_hello(Bytes body);
  Status on_go_away(Bytes body);
  Status on_item(uint8_t type, Bytes body);
  Status on_windows(Bytes body);
  Result<StreamRef> stream_of(uint64_t wire_id);
  size_t progress_now(TimeNs now);
  void flush(TimeNs now);
  Status answer_hello();
  Status get_ready();
  void note_hello(Bytes body);
  Status start_protection();
  Result<endpoint::DirectionCiphers> ciphers_of(Role sender) const;
  void send_hello();
  bool send_control(uint8_t type);
  void send_owed();
  void probe(TimeNs now);
  void end_silent_peer(TimeNs silent_seconds);
  void check_fetches(TimeNs now);
  // A fetch that stalls is found up to so much later.
  TimeNs fetch_check_interval() const {
    return options_.fetch_timeout == kNever ? kNever : std::max<TimeNs>(options_.fetch_timeout / 4, 1);
  }

  const Role role_;
  const SessionOptions options_;
  const std::shared_ptr<Budgets> budgets_;
  HelloFields hello_;
  const bool takes_calls_;
  bool makes_calls_;  // of a server, once it has heard the client's HELLO
  HelloFields more_hello_;
  HelloFields peer_hello_;
  SessionEvents& events_;
  endpoint::Endpoint endpoint_;
  Landing landing_;
  CountedBytes queued_;
  std::shared_ptr<Account> exposed_;
  Streams streams_;
  ClientSide client_;
  ServerSide server_;
  // What protect() was given, until the HELLOs are exchanged.
  struct WantedProtection {
    std::shared_ptr<const provider::CipherFactory> ciphers;
    provider::ExportedKey secret;
    endpoint::KeyLimits limits;
  };
  std::unique_ptr<WantedProtection> wanted_protection_;
  provider::Protection protection_ = provider::Protection::kNone;
  std::string hellos_;  // both, the client's first; until on_ready() has returned
  bool ready_ = false;
  bool hello_waits_ = false;  // a client's, for an answer
  bool items_first_ = false;
  bool ping_owed_ = false;  // what probe_sent_ says has yet to go out
  bool pong_owed_ = false;
  bool go_away_owed_ = false;
  bool go_away_sent_ = false;
  bool go_away_ack_owed_ = false;
  bool drained_ = false;
  std::string go_away_reason_;
  TimeNs now_ = 0;
  TimeNs last_heard_ = 0;
  TimeNs probe_sent_ = kNever;  // kNever: none outstanding
  TimeNs fetches_checked_ = 0;
};

}  // namespace rrpc::rpc
