// What was posted to a send queue and hasn't completed, in order. A device tells only of signalled requests: one of
// these completing means that all before it have.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "provider/provider.h"

namespace rrpc::provider::verbs {

struct SendEntry {
  enum class Kind : uint8_t {
    kUser,        // somebody's request
    kBind,        // opens a memory window
    kInvalidate,  // closes it
    kMarker,      // its completion says that what came before is done
  };
  uint64_t wr_id = 0;  // kUser: the caller's; kBind, kInvalidate: the window's key
  Opcode opcode = Opcode::kSend;
  Kind kind = Kind::kUser;
  bool signalled = true;      // kUser: whether the caller hears of its success
  bool own_error = false;     // names memory outside its region
  uint32_t length_bytes = 0;  // of the message
};

class SendLedger {
 public:
  explicit SendLedger(uint32_t capacity) : slots_(capacity) {}

  uint64_t first() const { return first_; }
  uint64_t end() const { return end_; }
  bool empty() const { return first_ == end_; }
  uint32_t user_count() const { return user_count_; }
  uint32_t internal_count() const { return static_cast<uint32_t>(end_ - first_) - user_count_; }
  bool outstanding(uint64_t sequence) const { return sequence >= first_ && sequence < end_; }

  // Its sequence number, which goes to the device with it.
  uint64_t push(const SendEntry& entry) {
    RRPC_CHECK(end_ - first_ < slots_.size(), "the send ledger is full");
    slots_[end_ % slots_.size()] = entry;
    if (entry.kind == SendEntry::Kind::kUser) ++user_count_;
    return end_++;
  }
  // The newest ones, that the device refused to take.
  void drop_newest(uint64_t from) {
    while (end_ > from) {
      --end_;
      if (at(end_).kind == SendEntry::Kind::kUser) --user_count_;
    }
  }
  const SendEntry& front() const { return at(first_); }
  SendEntry pop() {
    RRPC_CHECK(!empty(), "the send ledger is empty");
    const SendEntry entry = at(first_++);
    if (entry.kind == SendEntry::Kind::kUser) --user_count_;
    return entry;
  }
  // The request that completed; those before it, of which the device said nothing, succeeded: `retired(entry)`.
  template <typename Retired>
  SendEntry complete(uint64_t sequence, Retired retired) {
    RRPC_CHECK(outstanding(sequence), "a completion of a request that isn't outstanding");
    while (first_ < sequence) retired(pop());
    return pop();
  }

 private:
  const SendEntry& at(uint64_t sequence) const { return slots_[sequence % slots_.size()]; }

  std::vector<SendEntry> slots_;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
  uint32_t user_count_ = 0;
};

}  // namespace rrpc::provider::verbs
