// The process at the other end of a connection's socket: whose it is, and whether it still lives.
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"

namespace rrpc::provider::shm {

class PeerProcess {
 public:
  PeerProcess() = default;
  static Result<PeerProcess> of(int socket);

  pid_t pid() const { return pid_; }
  uid_t uid() const { return uid_; }
  gid_t gid() const { return gid_; }
  // Of another user than this process: it gets to see its own ring and what is made for it, and nothing by its pid.
  bool other_user() const { return other_user_; }

  // Keeps a descriptor of the process (a pidfd), without which its pid may be another's at any time. False where the
  // kernel gives none, or the process has ended.
  bool hold(int socket);
  void let_go() { pidfd_.reset(); }
  bool held() const { return static_cast<bool>(pidfd_); }
  // One for all connections to a process that is held, and what outlives them, with one descriptor.
  static std::shared_ptr<PeerProcess> share(std::shared_ptr<PeerProcess> held);
  // Of a process that is held: from when it is over. Until then its pid is no other's.
  bool ended() const;

 private:
  pid_t pid_ = 0;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
  bool other_user_ = false;
  UniqueFd pidfd_;
};

}  // namespace rrpc::provider::shm
