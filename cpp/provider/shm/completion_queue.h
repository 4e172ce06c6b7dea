// Polls its queue pairs in memory; reads their sockets only now and then.
#pragma once

#include <vector>

#include "provider/provider.h"

namespace rrpc::provider::shm {

class ShmQueuePair;

class ShmCompletionQueue : public CompletionQueue {
 public:
  ~ShmCompletionQueue() override;

  size_t poll(std::span<Completion> out) override;
  void arm() override { arm_by(kByAll); }
  void arm_for_solicited() override { arm_by(kBySolicited); }
  bool knows_solicited() const override { return true; }
  bool disarm() override;
  void look_at_wait_handles() override { polls_to_socket_check_ = 1; }
  NextMessage next_message() const override;
  bool moved_bytes() const override { return moved_bytes_; }
  void append_wait_handles(std::vector<WaitHandle>& out) const override;

  // For queue pairs.
  void attach(ShmQueuePair& queue_pair) { queue_pairs_.push_back(&queue_pair); }
  void detach(ShmQueuePair& queue_pair);
  // While one connects every poll looks at the sockets.
  void set_connecting(bool connecting) {
    connecting_count_ += connecting ? 1 : -1;
    polls_to_socket_check_ = 1;
  }
  // It received something while armed, or has just connected: arm() must set its flag again.
  void disarmed(ShmQueuePair& queue_pair) { to_arm_.push_back(&queue_pair); }

 private:
  static constexpr int kPollsPerSocketCheck = 64;
  static constexpr size_t kWorkBytesPerPoll = 1 << 20;

  void arm_by(WokenBy woken_by);
  void check_sockets();
  size_t poll_several(std::span<Completion> out, size_t& work_bytes);

  int polls_to_socket_check_ = 1;
  int connecting_count_ = 0;
  bool moved_bytes_ = false;
  WokenBy armed_by_ = kByNothing;
  size_t first_ = 0;  // where the next poll begins, so that a busy queue pair starves no other
  std::vector<ShmQueuePair*> queue_pairs_;
  std::vector<ShmQueuePair*> to_arm_;
};

}  // namespace rrpc::provider::shm
