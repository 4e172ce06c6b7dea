// Receives that the queue pairs of one host draw from.
#pragma once

#include <deque>
#include <memory>
#include <span>

#include "provider/sim/requests.h"

namespace rrpc::provider::sim {

class SimSharedReceiveQueue : public SharedReceiveQueue {
 public:
  SimSharedReceiveQueue(Fabric& fabric, Host* host, uint32_t depth);
  ~SimSharedReceiveQueue() override;

  uint32_t depth() const override { return depth_; }
  Status post(std::span<const ReceiveRequest> requests) override;
  uint64_t limit_events() const override { return limit_events_; }

  void attach() { ++attached_count_; }
  void detach() { --attached_count_; }
  // The next receive, null when none is posted.
  std::shared_ptr<ReceiveSlot> take();
  // What a queue pair took and had not completed when it was destroyed.
  void post_again(const ReceiveSlot& slot);
  size_t posted_count() const { return open_.size(); }
  uint64_t calls_of_post() const { return calls_of_post_; }

 private:
  Status post_one(const ReceiveRequest& request);
  void append(std::shared_ptr<ReceiveSlot> slot);

  Fabric& fabric_;
  Host* host_;
  const uint32_t depth_;
  const uint32_t limit_;
  bool limit_armed_ = false;
  uint64_t limit_events_ = 0;
  uint32_t attached_count_ = 0;
  uint64_t calls_of_post_ = 0;
  std::deque<std::shared_ptr<ReceiveSlot>> open_;
};

}  // namespace rrpc::provider::sim
