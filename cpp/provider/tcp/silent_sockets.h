// Accepted sockets whose client has said nothing yet. Each costs one descriptor, and no connection is made for it:
// clients speak first, so an honest one's first bytes come with the end of the TCP handshake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace rrpc::provider::tcp {

constexpr TimeNs kSilenceMax = 10 * kSecond;

class SilentSockets {
 public:
  // Of a listening socket, which outlives this. Beyond `most` the oldest is closed for the next.
  SilentSockets(int listening_fd, size_t most, TimeNs silence_max = kSilenceMax)
      : listening_fd_(listening_fd), most_(most), silence_max_(silence_max) {}
  Status open();

  // Readable when somebody connects or speaks, or a silent socket is to be closed.
  int wait_fd() const { return epoll_.get(); }
  // Accepts, closes those that were silent too long or left without a word, a few of each at a time, and gives a socket
  // whose client has spoken; empty: none.
  Result<UniqueFd> next();
  size_t size() const { return sockets_.size(); }

 private:
  struct Silent {
    UniqueFd socket;
    TimeNs since = 0;
  };

  Status accept_some();
  Status watch(int fd, uint64_t key);
  void drop_oldest();
  void drop_late();

  const int listening_fd_;
  const size_t most_;
  const TimeNs silence_max_;
  UniqueFd epoll_;
  UniqueFd timer_;
  TimeNs timer_at_ = kNever;
  std::map<uint64_t, Silent> sockets_;  // by key, oldest first
  uint64_t next_key_ = 2;               // above those of the listening socket and the timer
};

}  // namespace rrpc::provider::tcp
