// The test bench tested: schedules replay, connections end as the plan has it.
#include "tests/sim_pair.h"

namespace rrpc::provider::sim {
namespace {

std::vector<std::string> traffic(uint64_t seed) {
  FaultPlan plan;
  plan.late_probability = 0.1;
  Pair pair(seed, plan);
  pair.connect();
  const uint32_t rkey = pair.expose(kSource, 4096).value();
  pair.client.fill(kSource, 64, 1);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(pair.client.send(i, kSource, 64).ok());
    EXPECT_TRUE(pair.server.send(i, kSource, 64).ok());
    EXPECT_TRUE(pair.client.transfer(Opcode::kRead, 10 + i, kSink, 512, pair.server.address(kSource), rkey).ok());
    pair.network.run_for(20 * kMicrosecond);
  }
  pair.network.run_for(kLong);
  EXPECT_EQ(pair.client.poll().size(), 12U);
  EXPECT_EQ(pair.server.poll().size(), 8U);
  pair.server.qp->revoke(rkey);
  EXPECT_TRUE(pair.network.violations().empty());
  return pair.network.trace();
}

// Key values are dice of the seed, so traces of two seeds would differ even in the same order: leave them out.
std::vector<std::string> order_of(std::vector<std::string> trace) {
  std::erase_if(trace, [](const std::string& line) {
    return line.find("expose") != line.npos || line.find("revoke") != line.npos;
  });
  for (std::string& line : trace) line.erase(0, line.find(' '));
  return trace;
}

TEST(SimNetwork, SameSeedSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(traffic(seed), traffic(seed));
}

TEST(SimNetwork, DifferentSeedsDifferentInterleavings) {
  std::vector<std::vector<std::string>> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) orders.push_back(order_of(traffic(seed)));
  std::sort(orders.begin(), orders.end());
  EXPECT_EQ(std::unique(orders.begin(), orders.end()), orders.end());
}

TEST(SimNetwork, ClockMovesOnlyWhenStepped) {
  Pair pair(1);
  pair.connect();
  const TimeNs before = pair.network.now();
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(pair.client.poll().empty());
  EXPECT_EQ(pair.network.now(), before);
  ASSERT_TRUE(pair.network.step());
  EXPECT_GT(pair.network.now(), before);
}

TEST(SimConnection, PrivateDataArrivesPadded) {
  Pair pair(1);
  pair.connect();
  EXPECT_EQ(as_text(pair.server.qp->peer_private_data().first(5)), "hello");
  EXPECT_EQ(as_text(pair.client.qp->peer_private_data().first(7)), "welcome");
  EXPECT_EQ(pair.client.qp->peer_private_data().size(), kPrivateDataBytesMax);
}

TEST(SimConnection, RefusedAndUnanswered) {
  FaultPlan plan;
  plan.connect_refused_probability = 1;
  Pair refused(1, plan);
  ASSERT_TRUE(refused.client.qp->start({}).ok());
  refused.network.run_for(kLong);
  EXPECT_EQ(refused.client.qp->state(), QueuePairState::kError);
  EXPECT_EQ(refused.client.qp->error().code(), StatusCode::kUnavailable);

  plan.connect_unanswered_probability = 1;
  Pair unanswered(1, plan);
  ASSERT_TRUE(unanswered.client.qp->start({}).ok());
  unanswered.network.run_for(kLong);
  EXPECT_EQ(unanswered.client.qp->state(), QueuePairState::kConnecting);
}

TEST(SimConnection, WhatWasPostedBeforeDisconnectArrives) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Pair pair(seed);
    pair.connect();
    pair.server.fill(kSource, 64, 7);
    ASSERT_TRUE(pair.server.send(1, kSource, 64).ok());
    pair.server.qp.reset();
    pair.server.fill(kSource, 64, 8);  // its owner's again: the goodbye was copied
    pair.network.run_for(kLong);
    const auto completions = pair.client.poll();
    ASSERT_EQ(completions.size(), 8U);
    EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
    EXPECT_TRUE(pair.client.filled(0, 64, 7));
    EXPECT_EQ(completions[1].status, WcStatus::kFlushed);
    EXPECT_EQ(pair.client.qp->state(), QueuePairState::kError);
    EXPECT_TRUE(pair.network.violations().empty());
  }
}

TEST(SimConnection, CutLinkHoldsMessagesUntilHealed) {
  Pair pair(1);
  pair.connect();
  pair.network.cut("client", "server");
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  ASSERT_TRUE(pair.client.send(2, kSource, 32).ok());
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.client.poll().empty());
  EXPECT_TRUE(pair.server.poll().empty());
  pair.network.heal("client", "server");
  pair.network.run_for(kLong);
  const auto received = pair.server.poll();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0].length_bytes, 64U);
  EXPECT_EQ(received[1].length_bytes, 32U);
  EXPECT_EQ(pair.client.poll().size(), 2U);
}

void expect_flushed_once(const std::vector<Completion>& completions, size_t count) {
  EXPECT_EQ(completions.size(), count);
  for (const Completion& completion : completions) EXPECT_EQ(completion.status, WcStatus::kFlushed);
}

TEST(SimLoss, WithoutNoticeNothingCompletesUntilDisconnect) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Pair pair(seed);
    pair.connect();
    pair.network.kill_host("server");
    ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
    ASSERT_TRUE(pair.client.send(2, kSource, 64, false, false).ok());
    pair.network.run_for(kLong);
    EXPECT_TRUE(pair.client.poll().empty());
    EXPECT_EQ(pair.client.qp->state(), QueuePairState::kConnected);
    pair.client.qp->disconnect("no answer");
    EXPECT_EQ(pair.client.qp->state(), QueuePairState::kError);
    pair.network.run_for(kLong);
    expect_flushed_once(pair.client.poll(), 8 + 2);
    pair.network.run_for(kLong);
    EXPECT_TRUE(pair.client.poll().empty());
    EXPECT_TRUE(pair.network.violations().empty());
  }
}

TEST(SimLoss, DestroyTakesWorkBackAndDropsCompletions) {
  Pair pair(1);
  pair.connect();
  pair.network.kill_host("server");
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  pair.client.qp->disconnect("no answer");
  pair.network.run_for(kMicrosecond);
  pair.client.qp.reset();
  pair.client.region.reset();
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.client.poll().empty());
  EXPECT_TRUE(pair.network.violations().empty());
}

TEST(SimLoss, WithNoticeTheSurvivorIsFlushed) {
  FaultPlan plan;
  plan.loss_notice_probability = 1;
  Pair pair(1, plan);
  pair.connect();
  pair.network.kill_host("server");
  pair.network.run_for(kLong);
  EXPECT_EQ(pair.client.qp->error().code(), StatusCode::kUnavailable);
  expect_flushed_once(pair.client.poll(), 8);
}

TEST(SimLoss, RetryTimeoutFailsTheRequest) {
  FaultPlan plan;
  plan.retry_timeout_ns = 100 * kMillisecond;
  Pair pair(1, plan);
  pair.connect();
  pair.network.cut("client", "server");
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  pair.network.run_for(kLong);
  const auto completions = pair.client.poll();
  ASSERT_EQ(completions.size(), 9U);
  EXPECT_EQ(std::count_if(completions.begin(), completions.end(),
                          [](const Completion& c) { return c.wr_id == 1 && c.status == WcStatus::kRetryExceeded; }),
            1);
}

TEST(SimLoss, ByPlan) {
  FaultPlan plan;
  plan.loss_probability = 1;
  plan.loss_after_ns_max = kMillisecond;
  Pair pair(1, plan);
  pair.connect();
  pair.network.run_for(kLong);
  ASSERT_TRUE(pair.client.send(1, kSource, 64).ok());
  pair.network.run_for(kLong);
  EXPECT_TRUE(pair.client.poll().empty());
  EXPECT_TRUE(pair.server.poll().empty());
}

// Everything at once: whatever the schedule, each signalled request ends exactly once and nothing is misused.
TEST(SimNetwork, ThousandsOfSeeds) {
  FaultPlan plan;
  plan.late_probability = 0.05;
  plan.late_read_probability = 0.2;
  plan.loss_probability = 0.3;
  plan.loss_after_ns_max = 3 * kMillisecond;
  plan.loss_notice_probability = 0.5;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    plan.delay_ns_max = seed % 2 == 0 ? 10 * kMicrosecond : 200 * kMicrosecond;
    SimNetwork network(seed, plan);
    End client(network, "client"), server(network, "server");
    auto listener = server.device->listen("server:1", {}).value();
    client.qp = client.device->open(*client.cq, "server:1", {}, kNever).value();
    client.post_receives(8);
    ASSERT_TRUE(client.qp->start({}).ok());
    while (!server.qp && network.step()) server.qp = listener->accept(*server.cq, {}).value();
    server.post_receives(8);
    (void)server.qp->start({});
    size_t posted_count = 8, completed_count = 0;
    const auto rkey = server.qp->expose(*server.region, server.memory.data() + kSource, 4096, kRemoteRead);
    for (uint64_t i = 0; i < 8; ++i) {
      network.run_for(100 * kMicrosecond);
      if (client.send(i, kSource, 32).ok()) ++posted_count;
      if (rkey.ok() &&
          client.transfer(Opcode::kRead, 50 + i, kSink + i * 256, 256, server.address(kSource), *rkey).ok())
        ++posted_count;
      completed_count += client.poll().size();
    }
    client.qp->disconnect("done");
    ASSERT_TRUE(network.run_until_idle());
    completed_count += client.poll().size();
    EXPECT_EQ(completed_count, posted_count) << "seed " << seed;
    EXPECT_TRUE(network.violations().empty()) << "seed " << seed << ": " << network.violations().front();
  }
}

}  // namespace
}  // namespace rrpc::provider::sim
