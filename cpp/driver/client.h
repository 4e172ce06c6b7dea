// The calling end of one connection, for any number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/address.h"
#include "driver/connection.h"
#include "driver/engine.h"
#include "driver/loop_queue.h"
#include "driver/rails.h"
#include "driver/server.h"
#include "driver/stream.h"
#include "driver/waiter.h"

namespace rrpc::driver {

class Client {
 public:
  // Dials, shakes hands, goes on to where the server sends it and, for rrpc://, moves to the best transport that both
  // ends share. With TLS, verbs:// is reached from a TCP connection at the same place.
  // With `serve`, the server may call back: that one takes its calls, and attends to the connection, which ends with
  // it.
  static Result<std::unique_ptr<Client>> connect(const std::string& address, const Options& options, TimeNs deadline,
                                                 std::shared_ptr<Server> serve = nullptr);
  // Calls to the client whose call `server` handles, over the connection that it came by: kept, but not closed here.
  static Result<std::unique_ptr<Client>> of_peer(std::shared_ptr<Server> server, uint64_t handle);
  ~Client();

  rpc::ClientCallRef new_call() const { return connection_->new_call(); }
  // Sends the call or queues it; `call` is new. After an error the call isn't under way and nobody is told of its end;
  // call->not_executed() tells whether the server may have it all the same.
  // `more`: the caller may begin others at once, for which the request may wait (StartPace).
  Status start(const rpc::ClientCallRef& call, rpc::CallRequest&& request, bool more = false);
  // As start(), for an event loop, in its thread: the call will end into the loop's queue.
  Status start_in_loop(const std::shared_ptr<LoopCall>& call, rpc::CallRequest request);
  // As start(), of a call with streams (request.kind).
  Result<std::unique_ptr<Stream>> open(const rpc::ClientCallRef& call, rpc::CallRequest request);
  // Polls, then sleeps, until the call is done or the deadline has passed. kInterrupted: a signal came
  // or `interrupt` is set; see to it and wait again. A call past its own deadline ends here.
  WaitResult wait(const rpc::ClientCallRef& call, TimeNs deadline, const std::atomic<bool>& interrupt);
  // False if it had ended already.
  bool cancel(const rpc::ClientCallRef& call, Status why);
  // Runs `callback` when the call ends, maybe under the mutex; false: it has ended. Not under the GIL.
  [[nodiscard]] bool on_done(const rpc::ClientCallRef& call, std::function<void()> callback);
  void close();
  // New calls can be begun: neither closed, nor failed, nor told that the peer takes no more.
  bool usable() const { return connection_->usable.load(std::memory_order_relaxed); }
  // Runs `callback` when that ends, maybe under the mutex; false: it has ended. Not under the GIL.
  [[nodiscard]] bool on_unusable(std::function<void()> callback);
  size_t calls_in_flight() const { return connection_->session().client().calls_in_flight(); }

  Engine& engine() { return *connection_->engine; }
  bool belongs_to_parent() const { return connection_->belongs_to_parent(); }
  // In a forked child not even a mutex of the parent's may be touched: it may be held for ever.
  Status check_usable() const;
  std::map<std::string, std::string> info();
  rpc::HelloFields peer_hello();
  // What moved over this connection: counters by name.
  std::map<std::string, int64_t> stats();

 private:
  // What each way to a connection needs to know.
  struct Dialling {
    const Options& options;
    std::shared_ptr<Server> serve;
    // By the TLS connection from which this one is to take over, and what both ends are to do with bytes on the wire.
    std::optional<Introduction> introduction = {};
    Protection protection = Protection::kNone;
  };

  Client(Address address, ConnectionRef connection, std::string transport, std::shared_ptr<Server> server,
         bool owns_connection = true);
  static Result<std::unique_ptr<Client>> reach(const Address& address, const Dialling& dialling, TimeNs deadline);
  static Result<std::unique_ptr<Client>> go_on(const Address& dialled, const Address& target, const Dialling& dialling,
                                               TimeNs deadline);
  // The first leg of the address.
  static Result<std::unique_ptr<Client>> dial(const Address& address, const Dialling& dialling, TimeNs deadline);
  static Result<std::unique_ptr<Client>> dial_once(const Address& address, const Dialling& dialling, TimeNs deadline);
  // From TCP to the first of the options' transports that can be had; why_not_ gets the reasons of others. The address
  // may insist on verbs.
  Status move_up(const Dialling& dialling, TimeNs deadline);
  // The dialling of a connection that is to take over from this one.
  Result<Dialling> introducing(const std::string& transport, const rpc::HelloFields& hello, const Dialling& dialling);
  Status move_to(const std::string& transport, const rpc::HelloFields& hello, const Dialling& dialling,
                 TimeNs deadline);
  Status try_address(const Address& address, const std::string& instance, const Dialling& dialling, TimeNs deadline);
  void wait_for_handshake(TimeNs deadline);
  std::string security();

  const std::shared_ptr<Server> server_;  // whose engine it is, if not the one of all clients
  const bool owns_connection_;
  Address address_;
  std::string sent_on_to_;  // the address of the process that answers, where another one was dialled
  std::string transport_;
  std::map<std::string, std::string> why_not_;
  ConnectionRef connection_;
  std::unique_ptr<RailKeeper> rails_;  // null: the address names none
};

// The process's engine for clients, made when first needed.
Engine& client_engine();

}  // namespace rrpc::driver
