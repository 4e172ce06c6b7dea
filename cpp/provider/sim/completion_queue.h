#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "provider/sim/requests.h"

namespace rrpc::provider::sim {

class SimCompletionQueue : public CompletionQueue {
 public:
  SimCompletionQueue(Fabric& fabric, Host* host, uint32_t depth) : fabric_(fabric), host_(host), depth_(depth) {}
  ~SimCompletionQueue() override;

  size_t poll(std::span<Completion> out) override;
  void arm() override {}
  void append_wait_handles(std::vector<WaitHandle>&) const override {}

  void attach(uint32_t qp_number) { attached_.push_back(qp_number); }
  void detach(uint32_t qp_number);
  // The completion becomes visible now.
  void push(CompletionEntry entry);
  // Where a polled message's bytes are until the next poll(), or until forget(). Then they are scribbled over.
  const std::byte* keep(uint32_t qp_number, uint64_t wr_id, Bytes message);
  void forget(uint32_t qp_number, uint64_t wr_id);

 private:
  Fabric& fabric_;
  Host* host_;
  uint32_t depth_;
  std::vector<uint32_t> attached_;  // by number
  std::deque<CompletionEntry> visible_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> kept_;  // by queue pair and receive
};

}  // namespace rrpc::provider::sim
