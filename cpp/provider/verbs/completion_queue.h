// The completions of several queue pairs, each with an ibv_cq of its own, and one completion channel per adapter.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

#include "provider/provider.h"
#include "provider/verbs/adapter.h"

namespace rrpc::provider::verbs {

class VerbsQueuePair;

class VerbsCompletionQueue final : public CompletionQueue {
 public:
  VerbsCompletionQueue();
  ~VerbsCompletionQueue() override;

  size_t poll(std::span<Completion> out) override;
  void arm() override;
  void append_wait_handles(std::vector<WaitHandle>& out) const override;
  bool lingering() const override;
  void look_at_wait_handles() override {
    polls_to_clock_ = 1;
    next_look_ = 0;
  }

  Result<ibv_comp_channel*> channel_of(Adapter& adapter);
  void attach(VerbsQueuePair* queue_pair);
  void detach(VerbsQueuePair* queue_pair);

 private:
  struct Channel {
    ibv_context* context;
    ibv_comp_channel* handle;
  };

  bool time_to_look();
  bool notification_is_due() const;
  void take_events(const Channel& channel);

  const uint32_t fork_generation_;
  std::vector<VerbsQueuePair*> queue_pairs_;
  std::vector<Channel> channels_;
  size_t turn_ = 0;
  TimeNs next_look_ = 0;
  uint32_t polls_to_clock_ = 1;
};

}  // namespace rrpc::provider::verbs
