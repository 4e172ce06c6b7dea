// The frames on their way into the socket, in wire order; several go out in one system call.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "provider/tcp/frame.h"
#include "provider/tcp/ring.h"
#include "provider/tcp/wire.h"

namespace rrpc::provider::tcp {

struct OutFrame {
  enum class Source : uint8_t { kControl, kRequest, kResponse, kPush };

  HeaderBytes header{};
  Source source = Source::kControl;
  std::span<const iovec> parts;  // a request's parts stay in its send queue slot; else &single
  iovec single{};
  std::vector<std::byte> owned;  // a control frame's payload, a push's whose memory was revoked
  uint64_t total_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t sequence = 0;  // of a request
  uint32_t rkey = 0;      // of a response or a push; 0: its bytes are owned

  bool written() const { return written_bytes == total_bytes; }
};

struct WriteOutcome {
  size_t written_bytes = 0;
  bool blocked = false;
  int error_number = 0;
};

class Output {
 public:
  static constexpr size_t kFramesMax = 16;

  Output() : frames_(kFramesMax) {}

  bool empty() const { return frames_.empty() && staged_begin_ == staged_end_; }
  bool has_frames() const { return !frames_.empty(); }
  bool full() const { return frames_.full(); }
  size_t size() const { return frames_.size(); }
  size_t room() const { return frames_.capacity() - frames_.size(); }
  uint64_t pending_bytes() const { return pending_bytes_; }
  OutFrame& operator[](size_t index) { return frames_[index]; }
  OutFrame& front() { return frames_.front(); }
  void pop();

  // Gives room for one more whole frame among the staged ones, which go out before all others; null where there is no
  // room. Call it only while has_frames() is false, so that everything is written in the order in which it came.
  std::byte* stage(size_t length_bytes);
  void staged(size_t length_bytes) { staged_end_ += length_bytes; }
  // Returns the staged bytes that are not written yet, and forgets them.
  Bytes take_staged();

  void push_control(const FrameHeader& header, std::vector<std::byte> body);
  void push_request(const FrameHeader& header, std::span<const iovec> parts, uint64_t sequence);
  // A response or a push, from memory that is exposed.
  void push_exposed(OutFrame::Source source, const FrameHeader& header, std::byte* bytes, uint32_t rkey);
  // What is still to be written of these pushes no longer comes from the exposed memory: it was copied.
  void own_pushed(uint32_t rkey);

  // With nothing to write, what the wire holds back is written.
  WriteOutcome write_some(const Wire& wire, size_t bytes_max);

 private:
  OutFrame& push(const FrameHeader& header, OutFrame::Source source);
  size_t gather(std::span<iovec> out, size_t bytes_max, size_t& asked_bytes);
  void advance(size_t bytes);

  static constexpr size_t kStagedBytes = 16 << 10;

  std::unique_ptr<std::byte[]> staged_;  // made when first needed
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  Ring<OutFrame> frames_;
  uint64_t pending_bytes_ = 0;  // of frames queued and not popped, not yet written
};

// The frame's bytes from written_bytes on, appended.
void append_rest(const OutFrame& frame, std::vector<std::byte>& out);

}  // namespace rrpc::provider::tcp
