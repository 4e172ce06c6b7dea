// Messages that wait for credits: data messages in order, control messages as lists of call ids that merge.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "endpoint/endpoint.h"

namespace rrpc::rpc {

// Call ids to be told in one kind of control message; any number of them is one message. They free memory
// that others wait for, so they never wait for data credits.
class CallIdOutbox {
 public:
  explicit CallIdOutbox(uint8_t type) : type_(type) {}
  // `solicited`: the peer is to be woken for it. For one that isn't it needn't be.
  void add(uint64_t call_id, bool solicited = true) {
    ids_.push_back(call_id);
    solicited_ = solicited_ || solicited;
  }
  void clear() {
    ids_.clear();
    solicited_ = false;
  }
  size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }

  void flush(endpoint::Endpoint& endpoint) {
    while (!ids_.empty() && endpoint.can_send(type_)) {
      const size_t count = std::min(ids_.size(), endpoint.body_bytes_max() / sizeof(uint64_t));
      const auto end = ids_.begin() + static_cast<ptrdiff_t>(count);
      const std::vector<uint64_t> sent(ids_.begin(), end);
      ids_.erase(ids_.begin(), end);  // before the send: one that fails clears what is left
      const Bytes part = std::as_bytes(std::span(sent));
      // Of the few that the peer has room for, one at most lies there until it looks.
      const bool first = endpoint.control_credits().out == 0;
      endpoint.send(type_, {&part, 1}, {}, solicited_ || !first);
    }
    if (ids_.empty()) solicited_ = false;
  }

 private:
  uint8_t type_;
  std::vector<uint64_t> ids_;
  bool solicited_ = false;
};

}  // namespace rrpc::rpc
