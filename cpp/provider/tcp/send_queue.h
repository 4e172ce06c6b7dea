// The requests posted to one queue pair's send side, in order, until each has completed.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <vector>

#include "provider/provider.h"
#include "provider/tcp/ring.h"

namespace rrpc::provider::tcp {

constexpr size_t kSgeCountMax = 8;

struct SendRequest {
  enum class State : uint8_t {
    kPosted,
    kWriting,  // in the output queue
    kWaiting,  // written; the peer has yet to answer
    kDone,
  };

  uint64_t wr_id = 0;
  Opcode opcode = Opcode::kSend;
  State state = State::kPosted;
  WcStatus failure = WcStatus::kFlushed;  // how it completes if the queue pair dies first
  bool signalled = true;
  bool inline_data = false;
  uint32_t part_count = 0;
  uint32_t length_bytes = 0;
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
  std::array<iovec, kSgeCountMax> parts{};
  uint16_t push_count = 0;       // of SendQueue::pushes()
  std::vector<std::byte> owned;  // an inline send's bytes that the socket didn't take at once

  std::span<iovec> part_span() { return {parts.data(), part_count}; }
  void take_ownership();
};

class SendQueue {
 public:
  explicit SendQueue(uint32_t depth) : requests_(depth) {}

  size_t room() const { return requests_.capacity() - requests_.size(); }
  bool empty() const { return requests_.empty(); }
  uint64_t first_sequence() const { return first_; }
  uint64_t end_sequence() const { return first_ + requests_.size(); }
  SendRequest& at(uint64_t sequence) { return requests_[sequence - first_]; }

  void push(const WorkRequest& request);
  // The oldest request not yet given to the output queue, or null.
  SendRequest* next_to_write() { return unwritten_ < end_sequence() ? &at(unwritten_) : nullptr; }
  bool has_unwritten() const { return unwritten_ < end_sequence(); }
  uint64_t next_to_write_sequence() const { return unwritten_; }
  // What is to be pushed behind that one.
  std::span<const RemoteRange> pushes() { return std::span(pushes_).first(next_to_write()->push_count); }
  void advance();
  // The request whose tag came back, or null.
  SendRequest* find_tag(uint32_t tag);
  SendRequest& front() { return requests_.front(); }
  void pop();

 private:
  Ring<SendRequest> requests_;
  std::vector<RemoteRange> pushes_;  // of all that is unwritten, in order
  uint64_t first_ = 0;
  uint64_t unwritten_ = 0;
};

}  // namespace rrpc::provider::tcp
