// Frames over the nonblocking Unix socket of one connection, with the descriptors that some of them carry.
#pragma once

#include <sys/socket.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "provider/shm/fork_guard.h"
#include "provider/shm/wire.h"

namespace rrpc::provider::shm {

struct Message {
  MessageType type{};
  Bytes payload;  // valid until the next call of next()
  UniqueFd fd;    // of types that carry one
};

class SocketChannel {
 public:
  explicit SocketChannel(UniqueFd socket) : socket_(std::move(socket)), input_(new Input) {}

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

  // Sent at once, or kept until flush() when the kernel has no room. A dead peer is told by next(), not here.
  Status send(const Frame& frame, int fd = -1);
  // ResourceExhausted where send() would keep it.
  Status send_now(const Frame& frame, int fd = -1);
  bool backlogged() const { return !backlog_.empty(); }
  Status flush();

  // The next whole message; nothing when none is there yet; Unavailable at the stream's end.
  Result<std::optional<Message>> next();
  // The peer's end of the socket is closed, whatever may still be unread.
  bool peer_gone() const;

 private:
  static constexpr size_t kInputBytes = 4096;
  static constexpr size_t kFdsWaitingMax = 16;

  struct Kept {
    std::vector<std::byte> bytes;
    size_t sent_bytes = 0;
    UniqueFd fd;
  };
  struct Input {
    std::array<std::byte, kInputBytes> buffer;
    size_t begin = 0;
    size_t end = 0;
    bool preamble_seen = false;
    std::deque<UniqueFd> fds;
  };
  enum class Sent { kAll, kNoRoom };

  Result<Sent> try_send(Bytes bytes, int fd, size_t* sent_bytes);
  Result<bool> fill();
  Status take_fds(msghdr& header);
  Result<std::optional<Message>> parse();
  Bytes unread() const { return Bytes(input_->buffer).subspan(input_->begin, input_->end - input_->begin); }

  GuardedFd socket_;
  std::unique_ptr<Input> input_;
  std::deque<Kept> backlog_;
};

}  // namespace rrpc::provider::shm
