// Clients that come a second time, over shared memory or RDMA, after TLS has told who they are. Both ends prove with a
// key of the TLS connection that they are the ones who made it. The proofs name the queue pair, so that nobody can slip
// in another one, and what protects its bytes, so that nobody can talk both ends into less.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "driver/options.h"
#include "provider/provider.h"
#include "rpc/messages.h"
#include "rpc/session.h"

namespace rrpc::driver {

class Connection;

// What both ends of one TLS connection know.
struct Introduction {
  std::string id;  // names it to the server; tells nothing of the key
  provider::ExportedKey key{};
  std::shared_ptr<provider::TlsContext> tls;
  provider::PeerIdentity peer;
  std::weak_ptr<Connection> introducer;  // that connection, at a server
};
// None without TLS. With the mutex of the queue pair's connection.
std::optional<Introduction> introduction_by(const provider::QueuePair& queue_pair,
                                            std::shared_ptr<provider::TlsContext> tls);

// By which a client's HELLO says who it is; empty: nobody.
std::string introduction_id(const rpc::HelloFields& hello);

// In the HELLO of a server over TLS: what it wants of RDMA beside it; in a client's over RDMA: what it is to be.
constexpr char kRdmaSecurity[] = "rdma_security";
Result<Protection> asked_protection(const rpc::HelloFields& hello);

// One end's part in the HELLOs of the second connection.
class Introduced {
 public:
  // `protection`: what both ends are to do with bytes on the wire.
  Introduced(Introduction introduction, rpc::Role role, std::string scheme, Protection protection)
      : introduction_(std::move(introduction)), role_(role), scheme_(std::move(scheme)), protection_(protection) {}

  // Adds this end's proof. `ends`: of the queue pair that it is about.
  void add_proof(const provider::EndNames& ends, rpc::HelloFields& hello) const;
  // Unauthenticated where the peer's isn't right.
  Status check_proof(const provider::EndNames& ends, const rpc::HelloFields& hello) const;
  Protection protection() const { return protection_; }
  // Has the session protect what follows its HELLOs, as agreed.
  Status protect(rpc::Session& session) const;
  const provider::PeerIdentity& peer() const { return introduction_.peer; }
  std::shared_ptr<Connection> introducer() const { return introduction_.introducer.lock(); }

 private:
  std::string proof(rpc::Role of, const provider::EndNames& ends) const;

  const Introduction introduction_;
  const rpc::Role role_;
  const std::string scheme_;
  const Protection protection_;
};

// Those of a server's clients, each good for one connection in the next half minute. Beyond kWaitingMax the oldest goes
// for the next. Thread-safe.
class Introductions {
 public:
  static constexpr size_t kWaitingMax = 16384;

  void add(Introduction introduction, TimeNs now);
  // The server's part in the second connection, whose client says `hello` over `scheme`: finds the introduction that it
  // names and uses it up. Unauthenticated without a proof; FailedPrecondition for less protection of RDMA than `least`.
  Result<Introduced> take(const rpc::HelloFields& hello, const std::string& scheme, const provider::EndNames& ends,
                          Protection least, TimeNs now);
  std::optional<Introduction> find(const std::string& id, TimeNs now);
  // False: another connection has used it up meanwhile.
  bool use_up(const std::string& id);

 private:
  using ByAge = std::list<std::pair<TimeNs, Introduction>>;  // when it was added; oldest first

  void drop(ByAge::iterator one);
  void drop_old(TimeNs now);

  std::mutex mutex_;
  ByAge by_age_;
  std::unordered_map<std::string, ByAge::iterator> by_id_;
};

}  // namespace rrpc::driver
