#pragma once

#include <deque>

#include "provider/sim/requests.h"

namespace rrpc::provider::sim {

class SimCompletionQueue : public CompletionQueue {
 public:
  SimCompletionQueue(Fabric& fabric, Host* host, uint32_t depth) : fabric_(fabric), host_(host), depth_(depth) {}
  ~SimCompletionQueue() override;

  size_t poll(std::span<Completion> out) override;
  void arm() override {}
  void append_wait_handles(std::vector<WaitHandle>&) const override {}

  void attach() { ++attached_count_; }
  void detach(uint32_t qp_number);
  // The completion becomes visible now.
  void push(CompletionEntry entry);

 private:
  Fabric& fabric_;
  Host* host_;
  uint32_t depth_;
  uint32_t attached_count_ = 0;
  std::deque<CompletionEntry> visible_;
};

}  // namespace rrpc::provider::sim
