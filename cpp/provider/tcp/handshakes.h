// TLS handshakes of a listener, on a thread of their own: a signature takes hundreds of times as long as a poll, and
// who polls serves the clients that are connected.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "provider/tcp/silent_sockets.h"
#include "provider/tls.h"

namespace rrpc::provider::tcp {

// A socket whose client is known.
struct Secured {
  UniqueFd socket;
  std::unique_ptr<TlsChannel> channel;
};

class Handshakes {
 public:
  // `silent` outlives this, and is this one's from start() on. Beyond `most` handshakes the oldest ends for the next.
  Handshakes(SilentSockets& silent, std::shared_ptr<TlsContext> context, size_t most)
      : silent_(silent), context_(std::move(context)), most_(most) {}
  ~Handshakes();
  Status start();

  // Readable when next() may give something.
  int wait_fd() const { return ready_fd_.get(); }
  // The next client whose handshake is over; no socket: there is none. An error: no client can be accepted just now.
  Result<Secured> next();

 private:
  struct Handshake {
    UniqueFd socket;
    std::unique_ptr<TlsChannel> channel;
    TimeNs since = 0;
    bool wants_write = false;
    bool failed = false;  // the client is yet to read why
  };
  using Iterator = std::map<uint64_t, Handshake>::iterator;

  void run();
  void begin_some();
  bool wait_for_room();
  void step(Iterator it);
  void fail(Iterator it);
  void end(Iterator it);
  void drop_late(TimeNs now);
  bool watch(int fd, uint64_t key, bool wants_write, int operation) const;
  void hand_over(Result<Secured> secured);

  SilentSockets& silent_;
  const std::shared_ptr<TlsContext> context_;
  const size_t most_;
  UniqueFd epoll_;
  UniqueFd ready_fd_;
  UniqueFd stop_fd_;
  std::map<uint64_t, Handshake> under_way_;  // oldest first; the thread's
  uint64_t next_key_ = 2;                    // above those of the silent sockets and of stop_fd_
  std::mutex mutex_;
  std::deque<Result<Secured>> ready_;
  bool stopping_ = false;
  std::condition_variable room_;
  std::thread thread_;
};

}  // namespace rrpc::provider::tcp
