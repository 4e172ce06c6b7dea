// Calls with streams under seeded schedules, and with an end of every kind at every one of their steps.
// RRPC_SIM_SEEDS=n changes how many, RRPC_SIM_SEED=n replays one with its trace.
#include "stream_workload.h"

namespace rrpc::rpc {
namespace {

ItemPlan random_item(Rng& rng, size_t slot_bytes) {
  ItemPlan item;
  item.payload_bytes = rng.chance(0.1) ? static_cast<size_t>(rng.between(0, 3 * static_cast<int64_t>(slot_bytes)))
                                       : static_cast<size_t>(rng.between(0, 100));
  const auto buffers = rng.chance(0.6) ? 0 : rng.between(1, rng.chance(0.05) ? 40 : 4);
  for (int64_t i = 0; i < buffers; ++i)
    item.buffer_bytes.push_back(rng.chance(0.05) ? 0 : static_cast<size_t>(rng.between(1, 20000)));
  return item;
}

std::vector<ItemPlan> random_items(Rng& rng, size_t slot_bytes) {
  std::vector<ItemPlan> items(static_cast<size_t>(rng.between(0, rng.chance(0.3) ? 60 : 8)));
  for (ItemPlan& item : items) item = random_item(rng, slot_bytes);
  return items;
}

void random_session(Rng& rng, SessionOptions& options) {
  static constexpr uint32_t kSlots[] = {16, 16, 32, 64};
  static constexpr uint32_t kSlotBytes[] = {512, 512, 1024, 8192};
  static constexpr uint32_t kItems[] = {1, 2, 7, 64, 1024};
  static constexpr uint64_t kBytes[] = {1, 1000, 20000, 8 << 20};
  options.geometry = {kSlots[rng.between(0, 3)], kSlotBytes[rng.between(0, 3)],
                      static_cast<uint32_t>(rng.between(1, 16))};
  options.stream_window_items = kItems[rng.between(0, 4)];
  options.stream_window_bytes = kBytes[rng.between(0, 3)];
  options.keepalive_interval = options.keepalive_timeout = kSecond;
}

StreamScenario ordinary(Rng& rng) {
  StreamScenario scenario;
  random_session(rng, scenario.client);
  random_session(rng, scenario.server);
  static constexpr uint32_t kInlineBytes[] = {0, 64, 8192};
  scenario.plan.limits_max.inline_bytes_max = kInlineBytes[rng.between(0, 2)];
  scenario.plan.late_probability = rng.chance(0.3) ? 0.05 : 0;
  scenario.plan.slow_revocation_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.plan.posting_needs_adoption = true;
  scenario.plan.limits_max.dedicated_read_sinks = rng.chance(0.3);
  scenario.lazy_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.plan.limits_max.messages_complete = rng.chance(0.5);
  scenario.plan.limits_max.invalidates = rng.chance(0.5);
  scenario.plan.elsewhere_probability = rng.chance(0.5) ? 0.5 : 0;
  const auto calls = rng.between(1, rng.chance(0.2) ? 30 : 4);
  for (int64_t i = 0; i < calls; ++i) {
    static constexpr uint8_t kKinds[] = {kClientStreams, kServerStreams, kClientStreams | kServerStreams};
    StreamPlan plan;
    plan.key = static_cast<uint64_t>(i) + 1 + (rng.next() << 20);
    plan.kind = kKinds[rng.between(0, 2)];
    if ((plan.kind & kClientStreams) != 0) plan.from_client = random_items(rng, scenario.client.geometry.slot_bytes);
    if ((plan.kind & kServerStreams) != 0) plan.from_server = random_items(rng, scenario.server.geometry.slot_bytes);
    plan.metadata = (plan.kind & kServerStreams) != 0 && rng.chance(0.3);
    plan.reply_bytes = static_cast<size_t>(rng.between(0, rng.chance(0.1) ? 20000 : 100));
    plan.fails = rng.chance(0.1);
    if (!plan.fails && rng.chance(0.2)) plan.result_bytes = static_cast<size_t>(rng.between(1, 20000));
    if (rng.chance(0.1)) plan.reply_after = static_cast<int>(rng.between(0, 5));
    plan.client_pace = rng.chance(0.5) ? 0 : rng.between(0, 200 * kMicrosecond);
    plan.server_pace = rng.chance(0.5) ? 0 : rng.between(0, 200 * kMicrosecond);
    plan.batch = static_cast<size_t>(rng.between(1, 10));
    scenario.calls.push_back(std::move(plan));
    scenario.starts.push_back(rng.between(0, kMillisecond));
    scenario.cancels.push_back(kNever);
  }
  return scenario;
}

StreamScenario impatient(Rng& rng) {
  StreamScenario scenario = ordinary(rng);
  for (size_t i = 0; i < scenario.calls.size(); ++i) {
    if (rng.chance(0.5)) scenario.cancels[i] = scenario.starts[i] + rng.between(0, kMillisecond);
    if (rng.chance(0.3)) scenario.calls[i].timeout = rng.between(0, 2 * kMillisecond);
  }
  return scenario;
}

StreamScenario limited(Rng& rng) {
  StreamScenario scenario = impatient(rng);
  scenario.may_refuse = true;
  if (rng.chance(0.3)) scenario.client.exposed_bytes_max = static_cast<size_t>(rng.between(1, 30000));
  if (rng.chance(0.3)) scenario.server.exposed_bytes_max = static_cast<size_t>(rng.between(1, 30000));
  for (SessionOptions* options : {&scenario.client, &scenario.server}) {
    if (rng.chance(0.5)) continue;
    const auto tight = [&rng](int64_t most) -> size_t { return rng.chance(0.5) ? rng.between(1, most) : SIZE_MAX; };
    options->budgets = std::make_shared<Budgets>(tight(200000), tight(200000), tight(1 << 20));
    if (rng.chance(0.3)) options->message_bytes_max = tight(3000);
  }
  if (rng.chance(0.3)) scenario.server.calls_in_flight_max = static_cast<uint32_t>(rng.between(1, 6));
  const size_t client_limit = rng.chance(0.5) ? rng.between(4096, 100000) : size_t{1} << 30;
  const size_t server_limit = rng.chance(0.5) ? rng.between(4096, 100000) : size_t{1} << 30;
  scenario.disturb = [client_limit, server_limit](World&) {
    client_pool().set_limit(client_limit);
    server_pool().set_limit(server_limit);
  };
  return scenario;
}

// Some of the calls are the server's to its client.
template <StreamScenario (*make)(Rng&)>
StreamScenario both_ways(Rng& rng) {
  StreamScenario scenario = make(rng);
  scenario.both_ways = true;
  for (StreamPlan& plan : scenario.calls) plan.back = rng.chance(0.5);
  return scenario;
}

// Landing memory for a few items at a time, shared by both ends: what waits for it gets it.
template <StreamScenario (*make)(Rng&)>
StreamScenario in_turn(Rng& rng) {
  constexpr size_t kOneItem = 256 << 10;  // at most: its body, and four buffers as announced
  StreamScenario scenario = make(rng);
  const auto budgets = std::make_shared<Budgets>(2 * kOneItem, SIZE_MAX, SIZE_MAX);
  scenario.client.budgets = scenario.server.budgets = budgets;
  for (SessionOptions* options : {&scenario.client, &scenario.server}) options->landing_bytes_max = kOneItem;
  for (StreamPlan& plan : scenario.calls) {
    for (auto* items : {&plan.from_client, &plan.from_server})
      for (ItemPlan& item : *items) item.buffer_bytes.resize(std::min<size_t>(item.buffer_bytes.size(), 4));
  }
  return scenario;
}

// What ends a connection, or one end of it.
const std::function<void(World&)> kEnds[] = {
    [](World& world) {
      if (world.client.session) world.client.session->close(unavailable("the client leaves"));
    },
    [](World& world) {
      if (world.server.session) world.server.session->close(unavailable("the server leaves"));
    },
    [](World& world) {
      world.network.kill_host("server");
      world.server.dead = true;
    },
    [](World& world) { world.client.session.reset(); },
    [](World& world) { world.server.session.reset(); },
};

StreamScenario breaking(Rng& rng) {
  StreamScenario scenario = impatient(rng);
  scenario.may_break = true;
  scenario.plan.loss_notice_probability = rng.chance(0.5) ? 1 : 0;
  const auto& end = kEnds[rng.between(0, 4)];
  const TimeNs at = rng.between(0, 3 * kMillisecond);
  scenario.disturb = [&end, at](World& world) { world.network.schedule(at, [&world, &end] { end(world); }); };
  return scenario;
}

void run_seeds(uint64_t usual, StreamScenario (*make)(Rng&), std::initializer_list<StatusCode> expected) {
  const SeedRange range = seeds(usual);
  stream_outcomes().clear();
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    SCOPED_TRACE("RRPC_SIM_SEED=" + std::to_string(seed));
    Rng rng(seed * 7919);
    (void)run_streams(seed, make(rng), range.replay);
    if (::testing::Test::HasFailure()) return;  // the first says enough
  }
  for (const StatusCode code : expected)
    EXPECT_TRUE(range.count < 30 || stream_outcomes()[code] > 0) << "no call ended with " << status_code_name(code);
}

using enum StatusCode;
TEST(StreamSim, EveryItemArrivesOnceAndInOrder) { run_seeds(1200, ordinary, {kOk, kAborted}); }
TEST(StreamSim, CancelsAndDeadlinesWheneverTheyCome) {
  run_seeds(1200, impatient, {kOk, kAborted, kCancelled, kDeadlineExceeded});
}
TEST(StreamSim, ItemsThatWaitForLandingMemoryGetIt) {
  const int64_t waits = endpoint::total(&endpoint::Counters::landing_waits);
  run_seeds(600, in_turn<ordinary>, {kOk, kAborted});
  run_seeds(600, in_turn<both_ways<impatient>>, {kOk, kAborted, kCancelled, kDeadlineExceeded});
  run_seeds(300, in_turn<breaking>, {kOk, kCancelled, kUnavailable});
  EXPECT_TRUE(seeds(600).count < 30 || endpoint::total(&endpoint::Counters::landing_waits) > waits + 100);
}
TEST(StreamSim, LimitsEndCallsAndNothingElse) { run_seeds(800, limited, {kOk, kCancelled, kResourceExhausted}); }
TEST(StreamSim, LostConnectionsGiveEverythingBack) { run_seeds(1000, breaking, {kOk, kCancelled, kUnavailable}); }

TEST(StreamSim, BothWaysEveryItemArrivesOnceAndInOrder) { run_seeds(600, both_ways<ordinary>, {kOk, kAborted}); }
TEST(StreamSim, BothWaysCancelsAndDeadlinesWheneverTheyCome) {
  run_seeds(600, both_ways<impatient>, {kOk, kAborted, kCancelled, kDeadlineExceeded});
}
TEST(StreamSim, BothWaysLimitsEndCallsAndNothingElse) {
  run_seeds(400, both_ways<limited>, {kOk, kCancelled, kResourceExhausted});
}
TEST(StreamSim, BothWaysLostConnectionsGiveEverythingBack) {
  run_seeds(600, both_ways<breaking>, {kOk, kCancelled, kUnavailable});
}

// --- every step --------------------------------------------------------------------------------------

struct Shape {
  uint8_t kind;
  bool back;
};

StreamScenario small_call(Shape shape) {
  const uint8_t kind = shape.kind;
  StreamScenario scenario;
  scenario.both_ways = shape.back;
  for (SessionOptions* options : {&scenario.client, &scenario.server}) {
    options->geometry = {16, 512, 2};
    options->stream_window_items = 3;
    options->keepalive_interval = options->keepalive_timeout = 100 * kMillisecond;
  }
  const std::vector<ItemPlan> items = {{10, {}}, {20, {3000, 5000}}, {2000, {}}, {5, {}}, {2000, {700}}, {1, {9000}}};
  StreamPlan plan;
  plan.key = 77;
  plan.kind = kind;
  plan.back = shape.back;
  if ((kind & kClientStreams) != 0) plan.from_client = items;
  if ((kind & kServerStreams) != 0) plan.from_server = items;
  plan.metadata = (kind & kServerStreams) != 0;
  plan.result_bytes = 4000;
  plan.batch = 2;
  scenario.calls.push_back(plan);
  return scenario;
}

class EveryStep : public ::testing::TestWithParam<Shape> {
 protected:
  // Runs the call once for each of its steps, with `act` at that one.
  void at_every_step(const std::function<void(World&, StreamWorkload&)>& act, bool may_break) {
    const size_t steps = run_streams(1, small_call(GetParam()));
    EXPECT_GT(steps, 20u);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      for (size_t step = 0; step < steps + 10 && !HasFailure(); ++step) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
        StreamScenario scenario = small_call(GetParam());
        scenario.may_break = may_break;
        scenario.plan.loss_notice_probability = seed % 2 == 0 ? 1 : 0;
        scenario.at_step = [&](World& world, StreamWorkload& workload, size_t now) {
          if (now == step) act(world, workload);
        };
        scenario.calls.front().timeout = kNever;
        (void)run_streams(seed, std::move(scenario));
      }
    }
  }
};

TEST_P(EveryStep, TheClientCancels) {
  at_every_step([](World&, StreamWorkload& workload) { workload.cancel_first(); }, false);
}
TEST_P(EveryStep, TheServerRepliesEarly) {
  at_every_step([](World&, StreamWorkload& workload) { workload.reply_early(); }, false);
}
TEST_P(EveryStep, TheClientCloses) {
  at_every_step([](World& world, StreamWorkload&) { kEnds[0](world); }, true);
}
TEST_P(EveryStep, TheServerCloses) {
  at_every_step([](World& world, StreamWorkload&) { kEnds[1](world); }, true);
}
TEST_P(EveryStep, TheServerDies) {
  at_every_step([](World& world, StreamWorkload&) { kEnds[2](world); }, true);
}
TEST_P(EveryStep, TheClientDies) {
  at_every_step(
      [](World& world, StreamWorkload&) {
        world.network.kill_host("client");
        world.client.dead = true;
      },
      true);
}
TEST_P(EveryStep, TheClientIsDestroyed) {
  at_every_step([](World& world, StreamWorkload&) { kEnds[3](world); }, true);
}
TEST_P(EveryStep, TheServerIsDestroyed) {
  at_every_step([](World& world, StreamWorkload&) { kEnds[4](world); }, true);
}
std::string name_of(const ::testing::TestParamInfo<Shape>& shape) {
  if (shape.param.back) return "BothBack";
  if (shape.param.kind == kClientStreams) return "ClientStreams";
  return shape.param.kind == kServerStreams ? "ServerStreams" : "Both";
}
INSTANTIATE_TEST_SUITE_P(Kinds, EveryStep,
                         ::testing::Values(Shape{kClientStreams, false}, Shape{kServerStreams, false}, Shape{6, false},
                                           Shape{6, true}),
                         name_of);

}  // namespace
}  // namespace rrpc::rpc
