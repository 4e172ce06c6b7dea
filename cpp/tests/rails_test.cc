// Connections with rails, over the simulated network: where READs go, what a lost rail takes with it, who is let in.
#include "endpoint/rails.h"

#include "session_workload.h"
#include "session_world.h"

namespace rrpc::rpc {
namespace {

using endpoint::RailState;

constexpr size_t kArrayBytes = 8 << 20;

int64_t by_rails(const SessionEnd& end) { return end.session->endpoint().traffic().bytes_read_by_rails.load(); }

// A server that answers with an array as large as the one that it is sent.
struct RailsTest : testing::Test {
  RailsTest() {
    world.network.plan().offer_known_at_accept = true;
    world.server.request = [this](const ServerCallRef& call) {
      ASSERT_EQ(call->blocks().size(), 1u);
      EXPECT_TRUE(has_pattern({call->blocks()[0].data(), call->blocks()[0].size()}, 1, 1));
      Reply reply;
      reply.buffers.push_back(pattern_buffer(call->blocks()[0].size(), 2, 2));
      world.server.session->server().reply(call, std::move(reply), world.network.now());
    };
  }
  void connect(size_t rails) {
    world.connect({}, {});
    world.open_rails();
    for (size_t i = 0; i < rails; ++i) ASSERT_TRUE(world.dial_rail(i).ok());
    ASSERT_TRUE(world.run_until([&] { return carried() == rails; }, world.network.now() + kSecond));
  }
  size_t carried() {
    size_t count = 0;
    for (size_t i = 0; i < endpoint::kRailsMax; ++i) {
      const bool both = world.client.session->endpoint().rail_state(i) == RailState::kCarries &&
                        world.server.session->endpoint().rail_state(i) == RailState::kCarries;
      count += both ? 1 : 0;
    }
    return count;
  }
  ClientCallRef start(size_t bytes) {
    auto call = std::make_shared<ClientCall>();
    CallRequest request{"m", {}, {}, std::nullopt, kNever};
    request.buffers.push_back(pattern_buffer(bytes, 1, 1));
    EXPECT_TRUE(world.client.session->client().start(call, std::move(request), world.network.now()).ok());
    return call;
  }
  void finish(const ClientCallRef& call, size_t bytes) {
    ASSERT_TRUE(world.run_until([&] { return call->done(); }, world.network.now() + 60 * kSecond));
    ASSERT_TRUE(call->status().ok()) << call->status().to_string();
    ASSERT_EQ(call->blocks().size(), 1u);
    EXPECT_EQ(call->blocks()[0].size(), bytes);
    EXPECT_TRUE(has_pattern({call->blocks()[0].data(), bytes}, 2, 2));
  }
  void lose_one_amid_a_call(SessionEnd& end, const World::RailPairs& rails) {
    connect(2);
    const ClientCallRef call = start(kArrayBytes);
    const auto fetching = [&] { return world.server.session->endpoint().transfers_under_way(); };
    ASSERT_TRUE(world.run_until(fetching, world.network.now() + kSecond));
    World::lose_rail(end, rails, 0);
    finish(call, kArrayBytes);
    EXPECT_TRUE(world.run_until([&] { return carried() == 1; }, world.network.now() + kSecond));
    EXPECT_FALSE(world.client.closed || world.server.closed);
    EXPECT_NE(world.client.session->endpoint().why_no_rail(0), "");
  }
  World world{1};
};

TEST_F(RailsTest, OneArrayIsSpreadOverAllBothWays) {
  connect(3);
  finish(start(kArrayBytes), kArrayBytes);
  for (const SessionEnd* end : {&world.server, &world.client}) {
    EXPECT_GE(by_rails(*end), static_cast<int64_t>(kArrayBytes / 2)) << "three of four go by rails";
    EXPECT_LE(by_rails(*end), static_cast<int64_t>(kArrayBytes - kArrayBytes / 8)) << "and some by its own";
  }
}

TEST_F(RailsTest, ShortRangesGoByTheConnectionsOwn) {
  connect(1);
  finish(start(endpoint::kStripedBytesMin - 1), endpoint::kStripedBytesMin - 1);
  EXPECT_EQ(by_rails(world.server), 0);
  finish(start(endpoint::kStripedBytesMin), endpoint::kStripedBytesMin);
  EXPECT_GT(by_rails(world.server), 0);
}

TEST_F(RailsTest, OneLostAtTheFetchingEndTakesNothingWithIt) { lose_one_amid_a_call(world.server, world.server_rails); }
TEST_F(RailsTest, OneLostAtTheOwnersEndTakesNothingWithIt) { lose_one_amid_a_call(world.client, world.client_rails); }

TEST_F(RailsTest, ARailIsReplacedOnceTheOldOneIsAtNothing) {
  connect(1);
  const ClientCallRef call = start(kArrayBytes);
  EXPECT_EQ(world.dial_rail(0).code(), StatusCode::kFailedPrecondition) << "the argument is open on it";
  finish(call, kArrayBytes);
  ASSERT_TRUE(world.dial_rail(0).ok());
  ASSERT_TRUE(world.run_until([&] { return carried() == 1; }, world.network.now() + kSecond));
  const int64_t before = by_rails(world.server);
  finish(start(kArrayBytes), kArrayBytes);
  EXPECT_GT(by_rails(world.server), before);
}

TEST_F(RailsTest, AProtectedConnectionOneBeyondTheLastAndAFailedOneHaveNone) {
  connect(0);
  EXPECT_EQ(world.dial_rail(endpoint::kRailsMax).code(), StatusCode::kInvalidArgument);
  world.client.session->close(unavailable("over"));
  endpoint::RailQueues queues;
  EXPECT_EQ(world.client.session->endpoint().add_rail(0, queues, {}, kNever).code(), StatusCode::kUnavailable);
  if (ciphers() == nullptr) GTEST_SKIP() << "built without OpenSSL";
  World protected_world(2);
  protected_world.protect({provider::Protection::kSign, {}, {}});
  protected_world.connect({}, {});
  protected_world.open_rails();
  EXPECT_EQ(protected_world.dial_rail(0).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RailsTest, WhatIsNoRailAtTheOtherEndCarriesNothing) {
  connect(0);
  const auto stranger = world.server.device->listen("server:3", {}).value();
  endpoint::RailQueues queues;
  queues.completions = world.client.device->create_completion_queue(64);
  queues.queue_pair = world.client.device->open(*queues.completions, "server:3", World::kRailConfig, kNever).value();
  ASSERT_TRUE(world.client.session->endpoint().add_rail(0, queues, {}, kNever).ok());
  const auto cq = world.server.device->create_completion_queue(64);
  std::unique_ptr<provider::QueuePair> accepted;
  const auto lost = [&] {
    if (accepted == nullptr) {
      accepted = stranger->accept(*cq, World::kRailConfig).value();
      if (accepted != nullptr) (void)accepted->start(as_bytes("hello"));
    }
    return world.client.session->endpoint().rail_state(0) == RailState::kLost;
  };
  ASSERT_TRUE(world.run_until(lost, world.network.now() + kSecond));
  EXPECT_EQ(world.client.session->endpoint().why_no_rail(0), "what answers there is no rail of rrpc");
}

// Rails come and go at any moment, at either end, and no call is any the worse for it.
Scenario railed(Rng& rng) {
  Scenario scenario;
  for (SessionOptions* options : {&scenario.client, &scenario.server}) {
    options->geometry = {16, 1024, static_cast<uint32_t>(rng.between(1, 16))};
    options->geometry.striped_bytes_min = 1;
  }
  scenario.both_ways = rng.chance(0.3);
  scenario.cancel_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.deadline_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.lazy_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.call_count = static_cast<int>(rng.between(1, 40));
  scenario.plan.offer_known_at_accept = true;
  scenario.plan.posting_needs_adoption = rng.chance(0.5);
  scenario.plan.late_read_probability = rng.chance(0.3) ? 0.2 : 0;
  scenario.plan.limits_max.message_bytes_max = rng.chance(0.5) ? 8192 : 1U << 30;
  scenario.plan.limits_max.dedicated_read_sinks = rng.chance(0.3);
  scenario.plan.limits_max.invalidates = rng.chance(0.5);
  scenario.plan.slow_revocation_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.plan.revocation_delay_ns_max = 50 * kMicrosecond;
  scenario.disturb = [](World& world) {
    world.open_rails();
    for (int64_t left = world.rng.between(1, 8); left > 0; --left) {
      const auto index = static_cast<size_t>(world.rng.between(0, endpoint::kRailsMax - 1));
      world.network.schedule(world.rng.between(0, kMillisecond), [&world, index] { (void)world.dial_rail(index); });
    }
    for (int64_t left = world.rng.between(0, 4); left > 0; --left) {
      const auto index = static_cast<size_t>(world.rng.between(0, endpoint::kRailsMax - 1));
      const bool at_server = world.rng.chance(0.5);
      world.network.schedule(world.rng.between(0, 2 * kMillisecond), [&world, index, at_server] {
        World::lose_rail(at_server ? world.server : world.client, at_server ? world.server_rails : world.client_rails,
                         index);
      });
    }
  };
  return scenario;
}

TEST(RailsSim, ComeAndGoUnderCalls) {
  const int64_t before = endpoint::total(&endpoint::Counters::bytes_read_by_rails);
  run_seeds(1000, railed, {StatusCode::kOk, StatusCode::kCancelled, StatusCode::kDeadlineExceeded});
  EXPECT_GT(endpoint::total(&endpoint::Counters::bytes_read_by_rails), before);
}

}  // namespace
}  // namespace rrpc::rpc
