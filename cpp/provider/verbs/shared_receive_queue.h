// Receives that many queue pairs of one adapter draw from.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "provider/provider.h"
#include "provider/verbs/adapter.h"
#include "provider/verbs/protection_domain.h"

namespace rrpc::provider::verbs {

class VerbsSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  static Result<std::unique_ptr<SharedReceiveQueue>> create(Adapter& adapter, uint32_t depth);
  ~VerbsSharedReceiveQueue() override;

  uint32_t depth() const override { return static_cast<uint32_t>(slots_.size()); }
  Status post(std::span<const ReceiveRequest> requests) override;
  uint64_t limit_events() const override { return limit_events_.load(std::memory_order_relaxed); }

  Adapter& adapter() const { return adapter_; }
  ibv_srq* handle() const { return handle_; }
  // The completion of a receive: gives the wr_id that it was posted with.
  uint64_t complete(uint64_t slot);
  // A receive that completed and of which nobody will hear, since its queue pair dies: posted again.
  void take_back(uint64_t wr_id);
  void on_limit();  // by the thread that watches the adapter's events

 private:
  VerbsSharedReceiveQueue(Adapter& adapter, std::shared_ptr<ProtectionDomain> domain, ibv_srq* handle, uint32_t depth);
  // With the mutex.
  Status append(const ReceiveRequest& request);
  Status append_in(uint32_t slot, const ReceiveRequest& request);
  Status post_chain();
  void arm_limit();

  Adapter& adapter_;
  const std::shared_ptr<ProtectionDomain> domain_;
  ibv_srq* const handle_;
  const uint32_t limit_;
  std::mutex mutex_;
  struct Slot {
    ReceiveRequest request;  // posted, or posted last
    bool posted = false;
  };
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, uint32_t> slot_of_;  // by wr_id: each keeps its own
  uint32_t posted_count_ = 0;
  std::vector<ibv_recv_wr> chain_;  // goes to the device with the next call
  std::vector<ibv_sge> chain_sges_;
  std::atomic<bool> armed_{false};
  std::atomic<uint64_t> limit_events_{0};
};

inline Result<std::unique_ptr<SharedReceiveQueue>> create_shared_receive_queue(Adapter& adapter, uint32_t depth) {
  return VerbsSharedReceiveQueue::create(adapter, depth);
}

}  // namespace rrpc::provider::verbs
