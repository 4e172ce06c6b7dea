// What two queue pairs tell each other over the TCP socket that introduces them: frames of a header and a body, in
// little-endian bytes of fixed places.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace rrpc::provider::verbs {

// Options of an adapter's vendor, as in ibv_ece; vendor 0: none.
struct Ece {
  uint32_t vendor = 0;
  uint32_t options = 0;
  bool operator==(const Ece&) const = default;
};

struct Introduction {
  uint32_t queue_pair = 0;
  uint32_t packet_sequence = 0;  // the first packet number that it sends
  uint16_t lid = 0;
  uint8_t link_layer = 0;  // as in ibv_port_attr
  uint8_t mtu = 0;         // an ibv_mtu
  ibv_gid gid{};
  uint16_t responder_resources = 0;  // READs that it serves at once
  uint16_t initiator_depth = 0;      // READs that it issues at once
  // A server's: memory that the client READs to see that the path works.
  uint64_t check_address = 0;
  uint32_t check_rkey = 0;
  uint64_t check_seed = 0;
  uint8_t not_ready_retries = 0;  // how often the peer is to send again what this end wasn't ready for; 7: without end
  Ece ece;                        // a client's: what it can do; a server's: what of it holds
  std::vector<std::byte> private_data;
};

enum class FrameKind : uint8_t { kIntroduction = 1, kReady = 2, kGoodbye = 3 };

struct Frame {
  FrameKind kind{};
  std::vector<std::byte> body;
};

std::vector<std::byte> introduction_frame(const Introduction& introduction);
std::vector<std::byte> ready_frame();
std::vector<std::byte> goodbye_frame(const std::string& reason);
Result<Introduction> parse_introduction(const Frame& frame);
std::string goodbye_reason(const Frame& frame);
// Takes the next whole frame out of what has come; nothing while more bytes are needed.
Result<std::optional<Frame>> take_frame(std::vector<std::byte>& received);

// Frames over a socket that never blocks. The peer's bytes are checked as they come.
class FrameSocket {
 public:
  explicit FrameSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void send(const std::vector<std::byte>& frame);
  // What couldn't be sent at once. Errors show in the next receive().
  void flush();
  bool wants_write() const { return !unsent_.empty(); }
  // The next whole frame; nothing when none has come; an error when the peer has closed the socket or isn't one of
  // ours.
  Result<std::optional<Frame>> receive();
  void finish();  // no more is sent

 private:
  UniqueFd fd_;
  std::vector<std::byte> received_;
  std::vector<std::byte> unsent_;
};

}  // namespace rrpc::provider::verbs
