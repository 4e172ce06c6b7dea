// READ, WRITE and the misuse of memory on the test bench: each mistake that it exists to catch is caught.
#include "tests/sim_pair.h"

namespace rrpc::provider::sim {
namespace {

TEST(SimRead, OldContentsAreScribbledUntilCompletion) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Pair pair(seed);
    pair.connect();
    pair.server.fill(kSource, 4096, 5);
    const uint32_t rkey = pair.expose(kSource, 4096).value();
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 4096, pair.server.address(kSource), rkey).ok());
    EXPECT_TRUE(pair.client.filled(kSink, 4096, 0xDB));
    pair.network.run_for(kLong);
    EXPECT_TRUE(pair.client.filled(kSink, 4096, 5));
    ASSERT_EQ(pair.client.poll().size(), 1U);
  }
}

TEST(SimRead, LateReadAfterRevokeIsRefused) {
  FaultPlan plan;
  plan.late_read_probability = 1;
  size_t refused_count = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Pair pair(seed, plan);
    pair.connect();
    pair.server.fill(kSource, 4096, 5);
    const uint32_t rkey = pair.expose(kSource, 4096).value();
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 4096, pair.server.address(kSource), rkey).ok());
    pair.network.run_for(25 * kMillisecond);
    pair.server.qp->revoke(rkey);
    pair.server.fill(kSource, 4096, 9);
    pair.network.run_for(kLong);
    const auto completions = pair.client.poll();
    ASSERT_FALSE(completions.empty());
    if (completions[0].status == WcStatus::kSuccess) {
      EXPECT_TRUE(pair.client.filled(kSink, 4096, 5)) << "seed " << seed;
    } else {
      ++refused_count;
      const auto read =
          std::find_if(completions.begin(), completions.end(), [](const Completion& c) { return c.wr_id == 1; });
      ASSERT_NE(read, completions.end());
      EXPECT_EQ(read->status, WcStatus::kRemoteAccess);
      EXPECT_EQ(pair.client.qp->state(), QueuePairState::kError);
      EXPECT_EQ(pair.server.qp->state(), QueuePairState::kError);
    }
  }
  EXPECT_GT(refused_count, 50U);
  EXPECT_LT(refused_count, 250U);
}

// What a missing quarantine looks like: success, with bytes that were never meant for this reader.
TEST(SimRead, LateReadOfReusedMemoryReturnsWrongBytes) {
  FaultPlan plan;
  plan.late_read_probability = 1;
  size_t torn_count = 0, wrong_count = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Pair pair(seed, plan);
    pair.connect();
    pair.server.fill(kSource, 4096, 5);
    const uint32_t rkey = pair.expose(kSource, 4096).value();
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 4096, pair.server.address(kSource), rkey).ok());
    pair.network.schedule(25 * kMillisecond, [&pair] { pair.server.fill(kSource, 4096, 9); });
    pair.network.run_for(kLong);
    const auto completions = pair.client.poll();
    ASSERT_EQ(completions.size(), 1U);
    EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
    wrong_count += !pair.client.filled(kSink, 4096, 5);
    torn_count += !pair.client.filled(kSink, 4096, 5) && !pair.client.filled(kSink, 4096, 9);
  }
  EXPECT_GT(wrong_count, 50U);
  plan.late_read_probability = 0;
  plan.read_spread_ns_max = 50 * kMillisecond;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Pair pair(seed, plan);
    pair.connect();
    pair.server.fill(kSource, 4096, 5);
    const uint32_t rkey = pair.expose(kSource, 4096).value();
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 4096, pair.server.address(kSource), rkey).ok());
    pair.network.schedule(25 * kMillisecond, [&pair] { pair.server.fill(kSource, 4096, 9); });
    pair.network.run_for(kLong);
    torn_count += !pair.client.filled(kSink, 4096, 5) && !pair.client.filled(kSink, 4096, 9);
  }
  EXPECT_GT(torn_count, 10U);
}

TEST(SimRead, CompletionsKeepTheOrderPosted) {
  FaultPlan plan;
  plan.late_read_probability = 0.5;
  plan.limits_max.read_depth = 2;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Pair pair(seed, plan);
    pair.connect();
    const uint32_t rkey = pair.expose(kSource, 4096).value();
    for (uint64_t i = 0; i < 6; ++i) {
      const size_t sink = kSink + i * 512;
      ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 2 * i, sink, 512, pair.server.address(kSource), rkey).ok());
      ASSERT_TRUE(pair.client.send(2 * i + 1, kSource, 16).ok());
    }
    pair.network.run_for(kLong);
    const auto completions = pair.client.poll();
    ASSERT_EQ(completions.size(), 12U);
    for (uint64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(completions[i].wr_id, i);
      EXPECT_EQ(completions[i].status, WcStatus::kSuccess);
    }
  }
}

TEST(SimRead, GoodReadBeforeARefusedOneStillSucceeds) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Pair pair(seed);
    pair.connect(0);
    const uint32_t rkey = pair.expose(kSource, 512).value();
    const uint64_t remote = pair.server.address(kSource);
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 512, remote, rkey).ok());
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 2, kSink + 512, 513, remote, rkey).ok());
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 3, kSink + 2048, 512, remote, rkey).ok());
    pair.network.run_for(kLong);
    const auto completions = pair.client.poll();
    ASSERT_EQ(completions.size(), 3U);
    EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
    EXPECT_EQ(completions[1].status, WcStatus::kRemoteAccess);
    EXPECT_EQ(completions[2].status, WcStatus::kFlushed);
  }
}

TEST(SimWrite, LandsBeforeTheSendAfterIt) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Pair pair(seed);
    pair.connect();
    const uint32_t rkey = pair.expose(kSink, 512, kRemoteWrite).value();
    pair.client.fill(kSource, 512, 3);
    ASSERT_TRUE(pair.client.transfer(Opcode::kWrite, 1, kSource, 512, pair.server.address(kSink), rkey).ok());
    ASSERT_TRUE(pair.client.send(2, kSource, 16).ok());
    std::vector<Completion> received;
    while (received.empty() && pair.network.step()) received = pair.server.poll();
    ASSERT_EQ(received.size(), 1U);
    EXPECT_TRUE(pair.server.filled(kSink, 512, 3));
  }
}

TEST(SimStrict, ReceiverNotReadyIsRecorded) {
  Pair pair(1);
  pair.connect(1);
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  ASSERT_TRUE(pair.client.send(2, kSource, 64).ok());
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.violated("receiver not ready"));
  const auto completions = pair.client.poll();
  const auto second =
      std::find_if(completions.begin(), completions.end(), [](const Completion& c) { return c.wr_id == 2; });
  ASSERT_NE(second, completions.end());
  EXPECT_EQ(second->status, WcStatus::kRnrRetryExceeded);
  EXPECT_EQ(pair.client.qp->state(), QueuePairState::kError);
  EXPECT_EQ(pair.server.qp->state(), QueuePairState::kError);
}

TEST(SimStrict, SendBufferReusedBeforeCompletionIsRecorded) {
  Pair pair(1);
  pair.connect();
  pair.client.fill(kSource, 64, 1);
  ASSERT_TRUE(pair.client.send(1, kSource, 64, false, false).ok());
  pair.client.fill(kSource, 64, 2);
  ASSERT_TRUE(pair.client.send(2, kSource + 64, 64).ok());
  pair.network.run_for(kLong);
  ASSERT_EQ(pair.client.poll().size(), 1U);
  EXPECT_TRUE(pair.violated("send buffer of request 1"));
}

TEST(SimStrict, InlineBufferMayBeReusedAtOnce) {
  Pair pair(1);
  pair.connect();
  pair.client.fill(kSource, 64, 1);
  ASSERT_TRUE(pair.client.send(1, kSource, 64, true).ok());
  pair.client.fill(kSource, 64, 2);
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.server.filled(0, 64, 1));
  EXPECT_EQ(pair.client.poll().size(), 1U);
  EXPECT_TRUE(pair.network.violations().empty());
  EXPECT_EQ(pair.client.send(2, kSource, 65, true).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(pair.violated("inline"));
}

TEST(SimStrict, TouchedReceiveBufferIsRecorded) {
  Pair pair(1);
  pair.connect();
  pair.server.fill(0, 1, 1);
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.violated("receive buffer"));
}

TEST(SimStrict, MemoryOutsideItsRegionIsRecorded) {
  Pair pair(1);
  pair.connect(0);
  ASSERT_TRUE(pair.client.send(1, kMemoryBytes - 32, 64).ok());
  EXPECT_TRUE(pair.violated("outside its region"));
  pair.network.run_for(kLong);
  const auto completions = pair.client.poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, WcStatus::kLocalProtection);
  EXPECT_EQ(pair.client.qp->state(), QueuePairState::kError);
}

TEST(SimStrict, RegionDestroyedInUseIsRecorded) {
  Pair posted(1);
  posted.connect();
  posted.client.region.reset();
  EXPECT_TRUE(posted.violated("under posted work"));

  Pair exposed(1);
  exposed.connect(0);
  const uint32_t rkey = exposed.expose(kSource, 64).value();
  exposed.server.region.reset();
  EXPECT_TRUE(exposed.violated("under a live exposure"));
  ASSERT_TRUE(exposed.client.transfer(Opcode::kRead, 1, kSink, 64, exposed.server.address(kSource), rkey).ok());
  exposed.network.run_for(kLong);
  EXPECT_EQ(exposed.client.poll().at(0).status, WcStatus::kRemoteAccess);
}

TEST(SimRevocation, UnderWayTheRangeStaysOpenAndItsMemoryMustStay) {
  FaultPlan plan;
  plan.slow_revocation_probability = 1;
  plan.revocation_delay_ns_max = kSecond;
  for (const bool reused : {false, true}) {
    Pair pair(3, plan);
    pair.connect(0);
    pair.server.fill(kSource, 64, 5);
    const uint32_t rkey = pair.expose(kSource, 64).value();
    EXPECT_FALSE(pair.server.qp->revoke(rkey));
    EXPECT_TRUE(pair.server.qp->revoking(rkey));
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 64, pair.server.address(kSource), rkey).ok());
    pair.network.run_for(kMillisecond);
    EXPECT_EQ(pair.client.poll().at(0).status, WcStatus::kSuccess);
    if (reused) pair.server.fill(kSource, 1, 6);
    pair.network.run_for(kSecond);
    EXPECT_FALSE(pair.server.qp->revoking(rkey));
    EXPECT_EQ(pair.violated("while its revocation was under way"), reused);
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 2, kSink, 64, pair.server.address(kSource), rkey).ok());
    pair.network.run_for(kMillisecond);
    EXPECT_EQ(pair.client.poll().at(0).status, WcStatus::kRemoteAccess);
  }
  Pair pair(3, plan);
  pair.connect(0);
  EXPECT_FALSE(pair.server.qp->revoke(pair.expose(kSource, 64).value()));
  pair.server.region.reset();
  EXPECT_TRUE(pair.violated("under a live exposure"));
}

TEST(SimStrict, ReadsLandInTheirOwnSinksWhereTheDeviceWantsThat) {
  FaultPlan plan;
  plan.limits_max.dedicated_read_sinks = true;
  for (const bool dedicated : {false, true}) {
    Pair pair(1, plan);
    pair.connect(0);
    const uint32_t rkey = pair.expose(kSource, 64).value();
    std::unique_ptr<MemoryRegion> shared = std::move(pair.client.region);
    MemoryRange range{pair.client.memory.data() + kSink, 64};
    range.read_sink = dedicated;
    pair.client.region = pair.client.device->register_memory(range).value();
    ASSERT_TRUE(pair.client.transfer(Opcode::kRead, 1, kSink, 64, pair.server.address(kSource), rkey).ok());
    pair.network.run_for(kMillisecond);
    EXPECT_EQ(pair.client.poll().at(0).status, dedicated ? WcStatus::kSuccess : WcStatus::kLocalProtection);
    EXPECT_EQ(pair.violated("not registered as its sink"), !dedicated);
    if (!dedicated) continue;
    ASSERT_TRUE(pair.client.send(2, kSink, 64).ok());
    EXPECT_TRUE(pair.violated("for something else"));
    EXPECT_TRUE(pair.client.qp->expose(*pair.client.region, range.address, 64, kRemoteRead).ok());
    EXPECT_TRUE(pair.violated("as the sink of one READ"));
  }
}

TEST(SimStrict, UnsignalledRequestsHoldTheirPlaceUntilALaterCompletionIsPolled) {
  FaultPlan plan;
  plan.limits_max.send_depth = 2;
  Pair pair(1, plan);
  pair.connect();
  ASSERT_TRUE(pair.client.send(1, kSource, 16, false, false).ok());
  pair.network.run_for(kLong);
  ASSERT_TRUE(pair.client.send(2, kSource, 16).ok());
  pair.network.run_for(kLong);
  EXPECT_EQ(pair.client.send(3, kSource, 16).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pair.client.poll().size(), 1U);
  EXPECT_TRUE(pair.client.send(4, kSource, 16).ok());
  EXPECT_TRUE(pair.client.send(5, kSource, 16).ok());
  EXPECT_TRUE(pair.network.violations().empty());
}

}  // namespace
}  // namespace rrpc::provider::sim
