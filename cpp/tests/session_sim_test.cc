// Thousands of seeded schedules. RRPC_SIM_SEEDS=n changes how many, RRPC_SIM_SEED=n replays one with its trace (name
// the test with --gtest_filter).
#include "session_workload.h"

namespace rrpc::rpc {
namespace {

endpoint::Geometry random_geometry(Rng& rng) {
  static constexpr uint32_t kSlots[] = {16, 16, 32, 64};
  static constexpr uint32_t kSlotBytes[] = {512, 512, 1024, 2048, 8192};
  return {kSlots[rng.between(0, 3)], kSlotBytes[rng.between(0, 4)], static_cast<uint32_t>(rng.between(1, 16))};
}

// Slow or quick, eager or lazy, any ring: but nothing breaks.
Scenario ordinary(Rng& rng) {
  static constexpr uint32_t kInlineBytes[] = {0, 64, 8192};
  static constexpr uint32_t kMessageBytes[] = {8192, 8192, 1U << 30};
  Scenario scenario;
  scenario.client.geometry = random_geometry(rng);
  scenario.server.geometry = random_geometry(rng);
  scenario.client.keepalive_interval = scenario.server.keepalive_interval = kSecond;
  scenario.client.keepalive_timeout = scenario.server.keepalive_timeout = kSecond;
  static constexpr uint32_t kShared[] = {16, 64, 1024};
  if (rng.chance(0.3)) scenario.shared_receive_slots = kShared[rng.between(0, 2)];
  scenario.plan.limits_max.inline_bytes_max = kInlineBytes[rng.between(0, 2)];
  scenario.plan.limits_max.message_bytes_max = kMessageBytes[rng.between(0, 2)];
  scenario.plan.late_probability = rng.chance(0.3) ? 0.05 : 0;
  scenario.plan.late_read_probability = rng.chance(0.3) ? 0.2 : 0;
  scenario.plan.unreachable_memory_probability = rng.chance(0.3) ? 0.4 : 0;
  scenario.plan.slow_revocation_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.plan.revocation_delay_ns_max = rng.chance(0.3) ? 2 * kMillisecond : 50 * kMicrosecond;
  scenario.plan.posting_needs_adoption = true;
  scenario.plan.offer_known_at_accept = rng.chance(0.5);
  scenario.plan.limits_max.dedicated_read_sinks = rng.chance(0.3);
  scenario.plan.completion_delay_ns_max = rng.chance(0.3) ? 200 * kMicrosecond : 5 * kMicrosecond;
  scenario.lazy_probability = rng.chance(0.5) ? 0.5 : rng.chance(0.3) ? 0.95 : 0;
  scenario.call_count = static_cast<int>(rng.between(1, rng.chance(0.2) ? 120 : 25));
  scenario.calls_over_ns = rng.chance(0.3) ? 0 : rng.between(0, 3 * kMillisecond);
  scenario.plan.limits_max.messages_complete = rng.chance(0.5);
  scenario.plan.limits_max.invalidates = rng.chance(0.5);
  scenario.plan.elsewhere_probability = rng.chance(0.5) ? 0.5 : 0;
  return scenario;
}

Scenario impatient(Rng& rng) {
  Scenario scenario = ordinary(rng);
  scenario.cancel_probability = rng.chance(0.7) ? 0.6 : 0;
  scenario.deadline_probability = rng.chance(0.5) ? 0.5 : 0;
  return scenario;
}

// Landing memory for a few calls at a time, of one end or shared by both: whatever waits for it gets it.
template <Scenario (*make)(Rng&)>
Scenario in_turn(Rng& rng) {
  constexpr size_t kOneCall = 160 << 10;  // at most: its body and four buffers, in blocks
  Scenario scenario = make(rng);
  scenario.nested_probability = 0;  // two calls, each made by the other's handler, may need memory for both at once
  const auto budgets = std::make_shared<Budgets>(2 * kOneCall + rng.between(0, 2 * kOneCall), SIZE_MAX, SIZE_MAX);
  scenario.server.budgets = budgets;
  if (rng.chance(0.5)) scenario.client.budgets = budgets;
  return scenario;
}

Scenario limited(Rng& rng) {
  Scenario scenario = impatient(rng);
  scenario.may_refuse = true;
  for (SessionOptions* options : {&scenario.client, &scenario.server}) {
    if (rng.chance(0.5)) continue;
    const auto tight = [&rng](int64_t most) -> size_t { return rng.chance(0.5) ? rng.between(1, most) : SIZE_MAX; };
    options->budgets = std::make_shared<Budgets>(tight(200000), tight(200000), tight(20 << 20));
    if (rng.chance(0.3)) options->landing_bytes_max = tight(100000);
    if (rng.chance(0.3)) options->queued_bytes_max = tight(1 << 20);
    if (rng.chance(0.3)) options->message_bytes_max = tight(3000);
  }
  if (rng.chance(0.4)) scenario.client.calls_in_flight_max = static_cast<uint32_t>(rng.between(1, 6));
  if (rng.chance(0.4)) scenario.server.calls_in_flight_max = static_cast<uint32_t>(rng.between(1, 6));
  if (rng.chance(0.3)) scenario.client.exposed_bytes_max = static_cast<size_t>(rng.between(1, 100000));
  if (rng.chance(0.3)) scenario.server.exposed_bytes_max = static_cast<size_t>(rng.between(1, 100000));
  const size_t client_limit = rng.chance(0.3) ? rng.between(4096, 200000) : size_t{1} << 30;
  const size_t server_limit = rng.chance(0.3) ? rng.between(4096, 200000) : size_t{1} << 30;
  const double adopt_refused = rng.chance(0.3) ? 0.5 : 0;
  scenario.disturb = [client_limit, server_limit, adopt_refused](World& world) {
    world.network.plan().adopt_refused_probability = adopt_refused;
    client_pool().set_limit(client_limit);
    server_pool().set_limit(server_limit);
  };
  return scenario;
}

Scenario breaking(Rng& rng) {
  Scenario scenario = impatient(rng);
  scenario.may_break = true;
  scenario.calls_over_ns = 2 * kMillisecond;
  const TimeNs at = rng.between(0, 3 * kMillisecond);
  scenario.plan.loss_notice_probability = rng.chance(0.5) ? 1 : 0;
  switch (rng.between(0, 8)) {
    case 0:
      scenario.plan.loss_probability = 1;
      scenario.plan.loss_after_ns_max = 3 * kMillisecond;
      break;
    case 1:
      scenario.disturb = [at](World& world) {
        world.network.schedule(at, [&world] {
          if (world.client.session) world.client.session->close(unavailable("the client leaves"));
        });
      };
      break;
    case 2:
      scenario.disturb = [at](World& world) {
        world.network.schedule(at, [&world] {
          if (world.server.session) world.server.session->close(unavailable("the server leaves"));
        });
      };
      break;
    case 3:
      scenario.disturb = [at](World& world) {
        world.network.schedule(at, [&world] {
          world.network.kill_host("server");
          world.server.dead = true;
        });
      };
      break;
    case 4:  // leases end under slow readers, whose late reads are refused
      scenario.server.lease_timeout = rng.between(0, 200 * kMicrosecond);
      scenario.plan.late_read_probability = 0.5;
      break;
    case 5:
      scenario.plan.retry_timeout_ns = rng.between(kMillisecond, 20 * kMillisecond);
      scenario.plan.late_probability = 0.1;
      break;
    case 6:  // fetches of which nothing comes
      scenario.server.fetch_timeout = rng.between(2 * kMicrosecond, 100 * kMicrosecond);
      scenario.client.fetch_timeout = rng.between(2 * kMicrosecond, 100 * kMicrosecond);
      scenario.plan.late_read_probability = 0.5;
      break;
    case 7:  // whatever was going on
      scenario.disturb = [at](World& world) { world.network.schedule(at, [&world] { world.client.session.reset(); }); };
      break;
    default:  // 8
      scenario.disturb = [at](World& world) { world.network.schedule(at, [&world] { world.server.session.reset(); }); };
      break;
  }
  return scenario;
}

Scenario draining(Rng& rng) {
  Scenario scenario = impatient(rng);
  scenario.may_break = true;  // Unavailable, that is; the connection itself stays
  scenario.drains = true;
  const TimeNs at = rng.between(0, 3 * kMillisecond);
  scenario.disturb = [at](World& world) {
    world.network.schedule(at, [&world] { world.server.session->drain("shutting down"); });
  };
  return scenario;
}

template <Scenario (*make)(Rng&)>
Scenario both_ways(Rng& rng) {
  Scenario scenario = make(rng);
  scenario.both_ways = true;
  scenario.nested_probability = rng.chance(0.5) ? 0.5 : 0;
  // Two calls, each made by the other's handler, may need landing memory for both at once.
  if (scenario.client.budgets != nullptr || scenario.server.budgets != nullptr) scenario.nested_probability = 0;
  return scenario;
}

using enum StatusCode;
TEST(SessionSim, EveryCallEndsWithItsOwnBytes) {
  const int64_t written = endpoint::total(&endpoint::Counters::bytes_written);
  const int64_t staged = endpoint::total(&endpoint::Counters::bytes_staged);
  run_seeds(1200, ordinary, {kOk, kAborted});
  if (seeds(1200).count < 30) return;
  EXPECT_GT(endpoint::total(&endpoint::Counters::bytes_written), written) << "no result was written into out= memory";
  EXPECT_GT(endpoint::total(&endpoint::Counters::bytes_staged), staged);
}
TEST(SessionSim, CancelsAndDeadlinesAtEveryStep) {
  run_seeds(1600, impatient, {kOk, kAborted, kCancelled, kDeadlineExceeded});
}
TEST(SessionSim, WhatWaitsForLandingMemoryGetsIt) {
  const int64_t waits = endpoint::total(&endpoint::Counters::landing_waits);
  run_seeds(600, in_turn<ordinary>, {kOk, kAborted});
  run_seeds(600, in_turn<impatient>, {kOk, kAborted, kCancelled, kDeadlineExceeded});
  run_seeds(300, in_turn<both_ways<impatient>>, {kOk, kAborted, kCancelled, kDeadlineExceeded});
  run_seeds(300, in_turn<breaking>, {kOk, kCancelled, kUnavailable});
  EXPECT_TRUE(seeds(600).count < 30 || endpoint::total(&endpoint::Counters::landing_waits) > waits + 100);
}
TEST(SessionSim, LimitsRefuseAndNothingElseBreaks) { run_seeds(800, limited, {kOk, kCancelled, kResourceExhausted}); }
TEST(SessionSim, LostConnectionsFailTheirCallsAndGiveMemoryBack) {
  const int64_t expired = endpoint::total(&endpoint::Counters::leases_expired);
  run_seeds(1000, breaking, {kOk, kCancelled, kUnavailable});
  EXPECT_TRUE(seeds(1000).count < 30 || endpoint::total(&endpoint::Counters::leases_expired) > expired);
}
TEST(SessionSim, DrainingFinishesWhatRuns) { run_seeds(400, draining, {kOk, kUnavailable}); }

TEST(SessionSim, BothWaysEveryCallEndsWithItsOwnBytes) { run_seeds(300, both_ways<ordinary>, {kOk, kAborted}); }
TEST(SessionSim, BothWaysCancelsAndDeadlinesAtEveryStep) {
  run_seeds(600, both_ways<impatient>, {kOk, kAborted, kCancelled, kDeadlineExceeded});
}
TEST(SessionSim, BothWaysLimitsRefuseAndNothingElseBreaks) {
  run_seeds(300, both_ways<limited>, {kOk, kCancelled, kResourceExhausted});
}
TEST(SessionSim, BothWaysLostConnectionsFailTheirCallsAndGiveMemoryBack) {
  run_seeds(600, both_ways<breaking>, {kOk, kCancelled, kUnavailable});
}
TEST(SessionSim, BothWaysDrainingFinishesWhatRuns) { run_seeds(200, both_ways<draining>, {kOk, kUnavailable}); }

}  // namespace
}  // namespace rrpc::rpc
