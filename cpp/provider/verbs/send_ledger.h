// What was posted to a send queue and hasn't been told to its owner, in the order posted. A device tells only of
// signalled requests: one of these completing means that the unsignalled ones before it have. Over iWARP a send may
// complete before a READ that was posted earlier: it is told after it all the same.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "provider/provider.h"

namespace rrpc::provider::verbs {

struct SendEntry {
  enum class Kind : uint8_t {
    kUser,        // somebody's request
    kMessage,     // of reserve_message(): nobody hears of it unless `wanted`
    kBind,        // opens a memory window
    kInvalidate,  // closes it, or comes after its end
    kMarker,      // its completion says that what came before is done
  };
  uint64_t wr_id = 0;  // kUser, kMessage: the caller's; kBind, kInvalidate: the window's key
  Opcode opcode = Opcode::kSend;
  Kind kind = Kind::kUser;
  bool wanted = true;         // kUser, kMessage: whether the caller hears of its success
  bool signalled = true;      // whether the device does
  bool own_error = false;     // names memory outside its region
  uint32_t length_bytes = 0;  // of the message
  bool done = false;
  WcStatus status = WcStatus::kSuccess;  // once done

  bool of_user() const { return kind <= Kind::kMessage; }
  bool to_be_told() const { return of_user() && (wanted || (kind == Kind::kUser && status != WcStatus::kSuccess)); }
};

class SendLedger {
 public:
  explicit SendLedger(uint32_t capacity) : capacity_(capacity), slots_(std::bit_ceil(capacity)) {}

  uint64_t end() const { return end_; }
  bool empty() const { return first_ == end_; }
  // Whether the device has nothing of it any more.
  bool all_done() const { return waiting_count_ == 0; }
  uint32_t user_count() const { return user_count_; }
  uint32_t internal_count() const { return static_cast<uint32_t>(end_ - first_) - user_count_; }

  // Its sequence number, which goes to the device with it.
  uint64_t push(const SendEntry& entry) {
    RRPC_CHECK(end_ - first_ < capacity_, "the send ledger is full");
    at(end_) = entry;
    if (entry.of_user()) ++user_count_;
    ++waiting_count_;
    return end_++;
  }
  // The newest ones, that the device refused to take.
  void drop_newest(uint64_t from) {
    while (end_ > from) {
      --end_;
      --waiting_count_;
      if (at(end_).of_user()) --user_count_;
    }
  }
  const SendEntry& complete(uint64_t sequence, WcStatus status) {
    RRPC_CHECK(sequence >= first_ && sequence < end_, "a completion of a request that isn't outstanding");
    for (uint64_t before = first_; before < sequence; ++before) {
      if (!at(before).signalled) finish(at(before), WcStatus::kSuccess);
    }
    finish(at(sequence), status);
    return at(sequence);
  }
  // The device has not taken it.
  void fail(uint64_t sequence) { finish(at(sequence), WcStatus::kFlushed); }
  bool names_strange_memory(uint64_t sequence) const { return at(sequence).own_error; }
  // The device will not tell of the rest.
  void flush() {
    for (uint64_t sequence = first_; sequence < end_; ++sequence) finish(at(sequence), WcStatus::kFlushed);
  }
  // The oldest one, if it is done.
  const SendEntry* front_done() const { return !empty() && at(first_).done ? &at(first_) : nullptr; }
  void pop() {
    RRPC_CHECK(front_done() != nullptr, "no request is done");
    if (at(first_++).of_user()) --user_count_;
  }

 private:
  SendEntry& at(uint64_t sequence) { return slots_[sequence & (slots_.size() - 1)]; }
  const SendEntry& at(uint64_t sequence) const { return slots_[sequence & (slots_.size() - 1)]; }
  void finish(SendEntry& entry, WcStatus status) {
    if (entry.done) return;
    entry.done = true;
    entry.status = status;
    --waiting_count_;
  }

  const uint32_t capacity_;
  std::vector<SendEntry> slots_;  // a power of two of them
  uint64_t first_ = 0;
  uint64_t end_ = 0;
  uint32_t user_count_ = 0;
  uint32_t waiting_count_ = 0;
};

}  // namespace rrpc::provider::verbs
