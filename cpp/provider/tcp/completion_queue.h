// The completions of several queue pairs, and the sockets to drive and to wait on.
#pragma once

#include <deque>
#include <vector>

#include "provider/provider.h"
#include "provider/tcp/linger.h"

namespace rrpc::provider::tcp {

// A queue pair as its completion queue sees it.
class Pollable {
 public:
  virtual int fd() const = 0;
  virtual bool want_write() const = 0;
  virtual void drive() = 0;
  virtual void completion_taken(Opcode opcode) = 0;

 protected:
  ~Pollable() = default;
};

class TcpCompletionQueue final : public CompletionQueue {
 public:
  ~TcpCompletionQueue() override;

  size_t poll(std::span<Completion> out) override;
  bool polls_cheaply() const override { return false; }
  void arm() override {}  // the sockets tell by themselves
  bool handles_tell_all() const override { return true; }
  void append_wait_handles(std::vector<WaitHandle>& out) const override;
  bool moved_bytes() const override { return moved_bytes_; }
  bool lingering() const override { return !lingering_.empty(); }

  void register_queue_pair() { ++queue_pair_count_; }
  // Drops its completions: it is being destroyed.
  void forget(Pollable* queue_pair);
  // `receive`: where the message of a completion with a `place` belongs.
  void push(Pollable* queue_pair, const Completion& completion, std::byte* receive = nullptr);
  // Copies its messages that nobody has taken yet to their receives: their places are about to be used again.
  void settle(const Pollable* queue_pair);
  void note_moved_bytes() { moved_bytes_ = true; }
  bool has_ready() const { return !ready_.empty(); }

  // From when the queue pair has a socket until it gives it up.
  void attach(Pollable* queue_pair) { attached_.push_back(queue_pair); }
  void detach(Pollable* queue_pair);
  void linger(UniqueFd fd, std::vector<std::byte> rest);

 private:
  struct Ready {
    Completion completion;
    Pollable* queue_pair;
    std::byte* receive;
  };

  void drive();
  void drive_lingering();

  size_t queue_pair_count_ = 0;
  bool moved_bytes_ = false;
  std::vector<Pollable*> attached_;
  std::vector<Lingering> lingering_;
  size_t lingering_bytes_ = 0;
  std::deque<Ready> ready_;
};

}  // namespace rrpc::provider::tcp
