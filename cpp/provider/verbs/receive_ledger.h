// What was posted to a receive queue and hasn't completed. Receives are used in the order posted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace rrpc::provider::verbs {

class ReceiveLedger {
 public:
  explicit ReceiveLedger(uint32_t capacity) : wr_ids_(capacity) {}

  bool empty() const { return first_ == end_; }
  size_t room() const { return wr_ids_.size() - static_cast<size_t>(end_ - first_); }
  bool full() const { return room() == 0; }
  uint64_t end() const { return end_; }
  void push(uint64_t wr_id) {
    RRPC_CHECK(!full(), "the receive ledger is full");
    wr_ids_[end_++ % wr_ids_.size()] = wr_id;
  }
  // The oldest one's wr_id.
  uint64_t pop() {
    RRPC_CHECK(!empty(), "the receive ledger is empty");
    return wr_ids_[first_++ % wr_ids_.size()];
  }

 private:
  std::vector<uint64_t> wr_ids_;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

}  // namespace rrpc::provider::verbs
