// Credits: no send without a posted receive at the other end.
//
// Each direction has a window of data messages and a reserve of control slots (base/limits.h). Returns
// travel as cumulative counters in every message, so a repeated or merged return does no harm. Counted
// control messages (DONE, CANCEL, PING...) have a small window of their own; stand-alone CREDIT messages
// are never counted, and cannot overrun their reserve: a receiver sends one per half window of data or of
// counted control that it consumed, so at most two of each can be unseen by the peer.
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace rrpc::endpoint {

enum class MessageClass : uint8_t { kData, kControl, kCredit };

// One window at the sending end.
class SendWindow {
 public:
  SendWindow() = default;
  // Both ends count from `first`; tests start near the counters' wrap.
  explicit SendWindow(uint32_t size, uint32_t first = 0) : size_(size), sent_(first), granted_(first) {}

  bool open() const { return sent_ - granted_ < size_; }
  void take() { ++sent_; }
  uint32_t in_flight() const { return sent_ - granted_; }

  // The peer's cumulative counter. False: it would pass what was sent.
  [[nodiscard]] bool on_grant(uint32_t granted) {
    if (returned_by(granted) > in_flight()) return false;
    granted_ = granted;
    return true;
  }
  uint32_t returned_by(uint32_t granted) const { return granted - granted_; }

 private:
  uint32_t size_ = 0;
  uint32_t sent_ = 0;
  uint32_t granted_ = 0;
};

// One window at the receiving end: counts reposted slots and says when the sender must be told.
class ReceiveWindow {
 public:
  ReceiveWindow() = default;
  explicit ReceiveWindow(uint32_t size, uint32_t first = 0)
      : size_(size), owed_at_((size + 1) / 2), arrived_(first), reposted_(first), announced_(first) {}

  // False when the peer sent more than it had credits for. Called at arrival, before the repost.
  bool on_arrival() { return ++arrived_ - announced_ <= size_; }
  void on_reposted() { ++reposted_; }
  uint32_t granted() const { return reposted_; }
  uint32_t size() const { return size_; }
  void announced() { announced_ = reposted_; }
  uint32_t unannounced() const { return reposted_ - announced_; }
  bool owes_return() const { return unannounced() >= owed_at_; }

 private:
  uint32_t size_ = 0;
  uint32_t owed_at_ = 0;
  uint32_t arrived_ = 0;
  uint32_t reposted_ = 0;
  uint32_t announced_ = 0;
};

}  // namespace rrpc::endpoint
