// How a queue pair is connected, and how it parts: by librdmacm, or by hand over a TCP socket. Owned and driven by
// its VerbsQueuePair, under the rule that calls on one completion queue never overlap in time.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "provider/provider.h"
#include "provider/verbs/adapter.h"

namespace rrpc::provider::verbs {

// The wr_id of requests that a connector posts itself while it connects (the queue pair's owner posts none before
// kConnected): their completions are handed to completed() and to nobody else.
constexpr uint64_t kConnectorWorkRequest = ~uint64_t{0};

class Connector {
 public:
  enum class Phase : uint8_t {
    kInit,        // the queue pair exists in INIT: receives may be posted
    kConnecting,  // started
    kConnected,   // in RTS, the peer's private data is here
    kEnded,       // refused, lost, or ended by either side: error() says why
  };
  virtual ~Connector() = default;  // after destroy_queue_pair()

  virtual Adapter& adapter() = 0;
  virtual uint8_t port() const = 0;
  // Makes the queue pair and brings it to INIT. Once.
  virtual Result<ibv_qp*> create_queue_pair(ibv_pd* domain, ibv_qp_init_attr& attributes) = 0;
  // In whatever phase: tells the peer (a server that has not accepted rejects), then destroys it.
  virtual void destroy_queue_pair() = 0;

  // Offers (client) or accepts (server), with a READ depth of at most this in either direction.
  virtual Status start(Bytes private_data, uint32_t read_depth) = 0;
  // Looks for events. Never blocks. Costs a system call or two: the caller decides how often.
  virtual void drive() = 0;
  // A completion whose wr_id is kConnectorWorkRequest. The owner polls its queue while connecting too; what the peer
  // sends may land before the connector knows of kConnected, so completions of receives are kept back until then.
  virtual void completed(const ibv_wc& completion) = 0;
  // Ends the connection: the queue pair goes to the error state, so that what is outstanding is flushed; the reason
  // reaches the peer where the way of connecting can carry it. In kInit on a server: rejects.
  virtual void disconnect(const std::string& reason) = 0;

  // Of one that ended: the kernel still waits for the peer's answer, which destroy_queue_pair() would wait for too.
  virtual bool unanswered() const { return false; }

  virtual Phase phase() const = 0;
  virtual const Status& error() const = 0;           // Unavailable for "the peer has gone"
  virtual Bytes peer_private_data() const = 0;       // on a server known from the start
  virtual std::string peer_description() const = 0;  // "10.9.0.1:4711 on rxe0"
  virtual std::string local_description() const = 0;
  virtual uint32_t read_depth() const = 0;  // as negotiated; valid from kConnected
  virtual void append_wait_handles(std::vector<WaitHandle>& out) const = 0;
};

}  // namespace rrpc::provider::verbs
