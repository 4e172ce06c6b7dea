// How a connection comes to its rails (endpoint/rails.h): its server gives it a token, and its client dials the other
// addresses with that.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver/address.h"
#include "driver/connection.h"
#include "endpoint/rails.h"

namespace rrpc::driver {

// In HELLO: a client asks for a token, the server's has it, in hexadecimal.
constexpr char kRailToken[] = "rail_token";

// Of a server: which connection a rail is for. Thread-safe.
class RailTokens {
 public:
  // Empty: there is none to be had.
  std::string give(const ConnectionRef& connection);
  // Null where nobody was given it, or whose it was has ended.
  ConnectionRef find(const endpoint::RailToken& token);

 private:
  std::mutex mutex_;
  std::map<endpoint::RailToken, std::weak_ptr<Connection>> connections_;
  size_t prune_at_ = 64;
};

// Of a client: dials the rails of a connection on a thread of its own, and those that are lost again.
class RailKeeper {
 public:
  // `addresses`: kRailsMax at most. `server_hello`: where it has no token, nothing is dialled.
  RailKeeper(const ConnectionRef& connection, std::vector<Address> addresses, const rpc::HelloFields& server_hello);
  ~RailKeeper();  // waits for nothing
  RailKeeper(const RailKeeper&) = delete;
  RailKeeper& operator=(const RailKeeper&) = delete;

  // "10.9.5.1:7471 connected; 10.9.6.1:7471 not connected: ...". With the connection's mutex.
  std::string describe(endpoint::Endpoint& endpoint) const;

 private:
  struct Shared {
    std::weak_ptr<Connection> connection;
    std::vector<Address> addresses;
    endpoint::RailToken token{};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable stopped;
    std::array<std::string, endpoint::kRailsMax> failures;  // of the last dial of each; under the connection's mutex
  };

  struct Dialled {
    TimeNs at = 0;
    TimeNs pause = 0;  // from then on, before it is dialled again
  };

  static void keep(Shared& shared);
  static bool look_after(Shared& shared, size_t index, Dialled& dialled);
  static Status dial(const Shared& shared, const ConnectionRef& connection, Engine& engine, size_t index);

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::string why_none_;
};

}  // namespace rrpc::driver
