// Two ends on a simulated network, with memory, registered and filled at will.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "provider/sim/sim_network.h"

namespace rrpc::provider::sim {

constexpr size_t kMemoryBytes = 64 * 1024;
constexpr uint32_t kSlotBytes = 256;
constexpr TimeNs kLong = 10 * kSecond;

struct End {
  End(SimNetwork& network, const std::string& host_name)
      : device(network.create_device(host_name)),
        cq(device->create_completion_queue(1024)),
        memory(kMemoryBytes),
        region(device->register_memory({memory.data(), memory.size()}).value()) {}

  Sge sge(size_t offset, uint32_t length_bytes) { return {memory.data() + offset, length_bytes, region.get()}; }
  uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(memory.data() + offset); }
  void fill(size_t offset, size_t length_bytes, int value) {
    std::fill_n(memory.begin() + static_cast<ptrdiff_t>(offset), length_bytes, std::byte(value));
  }
  bool filled(size_t offset, size_t length_bytes, int value) {
    const auto first = memory.begin() + static_cast<ptrdiff_t>(offset);
    return std::all_of(first, first + static_cast<ptrdiff_t>(length_bytes),
                       [&](std::byte b) { return b == std::byte(value); });
  }
  void post_receives(int count) {
    for (int i = 0; i < count; ++i)
      EXPECT_TRUE(qp->post_receive({100 + static_cast<uint64_t>(i), sge(i * kSlotBytes, kSlotBytes)}).ok());
  }
  Status send(uint64_t wr_id, size_t offset, uint32_t length_bytes, bool inline_data = false, bool signalled = true) {
    const Sge source = sge(offset, length_bytes);
    const WorkRequest request{.wr_id = wr_id, .sges = {&source, 1}, .signalled = signalled, .inline_data = inline_data};
    return qp->post_send({&request, 1});
  }
  Status transfer(Opcode opcode, uint64_t wr_id, size_t offset, uint32_t length_bytes, uint64_t remote, uint32_t rkey) {
    const Sge local = sge(offset, length_bytes);
    const WorkRequest request{
        .wr_id = wr_id, .opcode = opcode, .sges = {&local, 1}, .remote_address = remote, .rkey = rkey};
    return qp->post_send({&request, 1});
  }
  std::vector<Completion> poll() {
    std::array<Completion, 64> batch;
    const size_t count = cq->poll(batch);
    return {batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count)};
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<CompletionQueue> cq;
  std::vector<std::byte> memory;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> qp;
};

class Pair {
 public:
  explicit Pair(uint64_t seed, FaultPlan plan = {}) : network(seed, plan) {
    network.record_trace(true);
    listener = server.device->listen("server:1", {}).value();
    client.qp = client.device->open(*client.cq, "server:1", {}, kNever).value();
  }
  void connect(int receive_count = 8) {
    client.post_receives(receive_count);
    ASSERT_TRUE(client.qp->start(as_bytes("hello")).ok());
    while (!server.qp && network.step()) server.qp = listener->accept(*server.cq, {}).value();
    ASSERT_TRUE(server.qp);
    server.post_receives(receive_count);
    ASSERT_TRUE(server.qp->start(as_bytes("welcome")).ok());
    while (server.qp->state() == QueuePairState::kConnecting && network.step()) {
    }
    ASSERT_EQ(client.qp->state(), QueuePairState::kConnected);
    ASSERT_EQ(server.qp->state(), QueuePairState::kConnected);
  }
  Result<uint32_t> expose(size_t offset, size_t length_bytes, uint32_t access = kRemoteRead) {
    return server.qp->expose(*server.region, server.memory.data() + offset, length_bytes, access);
  }
  bool violated(const std::string& what) {
    return std::any_of(network.violations().begin(), network.violations().end(),
                       [&](const std::string& line) { return line.find(what) != std::string::npos; });
  }

  SimNetwork network;
  End client{network, "client"};
  End server{network, "server"};
  std::unique_ptr<Listener> listener;
};

// Offsets past the receive slots.
constexpr size_t kSource = 16 * 1024;
constexpr size_t kSink = 32 * 1024;

}  // namespace rrpc::provider::sim
