// A socket whose queue pair is gone: what it still had to say is written, then the peer's end is awaited for a
// moment, since closing a socket with unread input would reset the connection and lose what was written.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace rrpc::provider::tcp {

class Lingering {
 public:
  Lingering(UniqueFd fd, std::vector<std::byte> rest, TimeNs deadline)
      : fd_(std::move(fd)), rest_(std::move(rest)), deadline_(deadline) {}

  int fd() const { return fd_.get(); }
  bool want_write() const { return written_bytes_ < rest_.size(); }
  size_t rest_bytes() const { return rest_.size(); }
  // True once the socket can be closed.
  bool drive(TimeNs now);

 private:
  bool write_rest();
  bool discard_input();

  UniqueFd fd_;
  std::vector<std::byte> rest_;
  size_t written_bytes_ = 0;
  TimeNs deadline_;
  bool shut_down_ = false;
};

}  // namespace rrpc::provider::tcp
