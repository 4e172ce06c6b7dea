// What comes out of the socket: a small buffer for headers and short payloads, and, for the rest of a long
// payload, the memory where it belongs, filled by recvmsg directly.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "provider/tcp/send_queue.h"
#include "provider/tcp/wire.h"

namespace rrpc::provider::tcp {

struct ReadOutcome {
  size_t read_bytes = 0;
  size_t cost_bytes = 0;     // what the reading cost, compared with that of so many bytes
  bool more_likely = false;  // it gave all that was asked for, or has more already
  bool end_of_stream = false;
  int error_number = 0;
};

class Input {
 public:
  static constexpr size_t kBufferBytes = 64 << 10;

  Input() : buffer_(new std::byte[kBufferBytes]) {}

  // Reads into the landing memory and what follows it into the buffer, in one call. `bulk_expected`: little
  // is taken into the buffer, so that the payload that is on its way needs no copy.
  ReadOutcome read_some(const Wire& wire, bool bulk_expected);

  Bytes buffered() const { return {buffer_.get() + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += bytes; }

  // The next `length_bytes` of input go there.
  void land(std::span<const iovec> parts, uint64_t length_bytes);
  // The next `length_bytes` of input go nowhere.
  void drop(uint64_t length_bytes);
  // Moves buffered bytes to the landing memory; true once all have landed.
  bool land_buffered();
  uint64_t landing_bytes() const { return landing_bytes_; }

 private:
  size_t landing_iovecs(std::span<iovec> out) const;
  void landed(size_t bytes);

  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  std::array<iovec, kSgeCountMax> parts_{};
  size_t part_ = 0;
  uint64_t landing_bytes_ = 0;
  bool dropping_ = false;
};

}  // namespace rrpc::provider::tcp
