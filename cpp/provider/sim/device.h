#pragma once

#include <deque>
#include <string>

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

class SimMemoryRegion : public MemoryRegion {
 public:
  SimMemoryRegion(Fabric& fabric, Host* host, const MemoryRange& range)
      : MemoryRegion(range, fabric.regions.add(host, range)), fabric_(fabric) {}
  ~SimMemoryRegion() override;

 private:
  Fabric& fabric_;
};

class SimListener : public Listener {
 public:
  SimListener(Fabric& fabric, Host* host, std::string address, size_t backlog);
  ~SimListener() override;

  const std::string& address() const override { return address_; }
  int wait_fd() const override { return -1; }
  Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) override;

  Result<std::unique_ptr<SharedReceiveQueue>> create_shared_receive_queue(uint32_t depth) override;

  Host* host() const { return host_; }
  bool offer(const Offer& offer);  // false when the backlog is full

 private:
  Fabric& fabric_;
  Host* host_;
  std::string address_;
  size_t backlog_;
  std::deque<Offer> offers_;
};

class SimDevice : public Device {
 public:
  SimDevice(Fabric& fabric, Host* host) : fabric_(fabric), host_(host) {}

  std::string_view name() const override { return "sim"; }
  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override;
  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t depth) override;
  Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) override;
  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                          const QueuePairConfig& config, TimeNs deadline) override;

 private:
  Fabric& fabric_;
  Host* host_;
};

// A connection request reaches `address`; `refused` by the plan's will.
void deliver_offer(Fabric& fabric, const std::string& address, const Offer& offer, bool refused);

}  // namespace rrpc::provider::sim
