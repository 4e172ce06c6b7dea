// Sessions that are protected, over the simulated network: calls as without, whatever is changed on the way ends the
// connection, and no byte of it reaches anybody. RRPC_SIM_SEEDS scales the number of attacks.
#include "session_workload.h"
#include "tampering.h"

namespace rrpc::rpc {
namespace {

using provider::Protection;

constexpr size_t kBufferBytes = 20000;

ProtectionChoice choice(Protection mode, uint8_t fill = 1) {
  ProtectionChoice made;
  made.mode = mode;
  made.secret.fill(std::byte{fill});
  return made;
}

class EachMode : public ::testing::TestWithParam<Protection> {
 protected:
  void SetUp() override {
    if (ciphers() == nullptr) GTEST_SKIP() << "this build has no ciphers";
  }
};
INSTANTIATE_TEST_SUITE_P(ProtectionSim, EachMode, ::testing::Values(Protection::kSign, Protection::kEncrypt),
                         [](const auto& tested) { return std::string(protection_name(tested.param)); });

// A client, and a server that answers every call with a buffer.
struct Calls {
  explicit Calls(Protection mode) : world(1) {
    world.protect(choice(mode));
    world.server.request = [this](const ServerCallRef& call) { serve(call); };
  }
  void serve(const ServerCallRef& call) {
    for (const endpoint::ReceivedBlock& block : call->blocks())
      if (!has_pattern({block.data(), block.size()}, 1, 1)) ++garbage;
    out_offered = out_offered || call->out_bytes() > 0;
    const bool into_out = call->metadata().size() == 1;  // the payload would say so
    Reply reply;
    reply.buffers.push_back(pattern_buffer(kBufferBytes, 1, 2));
    if (into_out) reply.out_index = 0;
    world.server.session->server().reply(call, std::move(reply), world.network.now());
  }
  ClientCallRef start(std::optional<endpoint::Buffer> out, endpoint::Buffer argument, const std::string& payload = "p",
                      TimeNs deadline = kNever) {
    auto call = std::make_shared<ClientCall>();
    const std::string_view metadata = out ? "o" : "";
    CallRequest request{"m", as_bytes(payload), {}, std::move(out), deadline, as_bytes(metadata)};
    request.buffers.push_back(std::move(argument));
    const Status status = world.client.session->client().start(call, std::move(request), world.network.now());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return call;
  }
  ClientCallRef call(const ClientCallRef& started) {
    EXPECT_TRUE(world.run_until([&] { return started->done(); }, world.network.now() + kSecond));
    return started;
  }
  ~Calls() { EXPECT_EQ(world.network.violations(), std::vector<std::string>()); }

  World world;
  int garbage = 0;
  bool out_offered = false;
};

TEST_P(EachMode, OutMemoryIsFetchedAndNeverWritten) {
  Calls calls(GetParam());
  calls.world.connect({}, {});
  EXPECT_EQ(calls.world.client.session->protection(), GetParam());
  EXPECT_TRUE(calls.world.client.session->endpoint().seals());
  endpoint::Buffer out = pattern_buffer(kBufferBytes, 0, 0);
  auto* const memory = static_cast<TestHold*>(out.hold.get());
  const auto hold = out.hold;
  const ClientCallRef call = calls.call(calls.start(std::move(out), pattern_buffer(kBufferBytes, 1, 1)));
  EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  EXPECT_TRUE(has_pattern(memory->bytes, 1, 2));
  EXPECT_FALSE(calls.out_offered);
  EXPECT_EQ(calls.garbage, 0);
  EXPECT_EQ(calls.world.server.session->endpoint().traffic().writes, 0);
}

TEST_P(EachMode, PiecesComeAsOneBuffer) {
  Calls calls(GetParam());
  calls.world.connect({}, {});
  const ClientCallRef call =
      calls.call(calls.start(std::nullopt, pattern_pieces(3 * endpoint::kSealPieceBytes, 7, 1, 1)));
  EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  EXPECT_EQ(calls.garbage, 0);
}

// A long body says how much time is left when it goes, and is sealed as it goes.
TEST_P(EachMode, ALongBodyIsSealedWithTheTimeThatIsLeft) {
  Calls calls(GetParam());
  TimeNs deadline = 0;
  calls.world.server.request = [&](const ServerCallRef& call) {
    deadline = call->deadline();
    calls.serve(call);
  };
  calls.world.connect({}, {});
  calls.world.server.dead = true;  // gives no credits
  std::vector<ClientCallRef> before;
  for (int i = 0; i < 60; ++i) before.push_back(calls.start(std::nullopt, pattern_buffer(10, 1, 1)));
  const TimeNs end = calls.world.network.now() + kSecond;
  const ClientCallRef call =
      calls.start(std::nullopt, pattern_buffer(kBufferBytes, 1, 1), std::string(50000, 'x'), end);
  calls.world.run_for(100 * kMillisecond);
  calls.world.server.dead = false;
  calls.call(call);
  EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  EXPECT_NEAR(static_cast<double>(deadline), static_cast<double>(end), 10.0 * kMillisecond);
  EXPECT_EQ(calls.garbage, 0);
}

// The application's own fault. The error says that it may be.
TEST_P(EachMode, ABufferThatChangesMeanwhileIsNotTaken) {
  Calls calls(GetParam());
  calls.world.connect({}, {});
  endpoint::Buffer argument = pattern_buffer(kBufferBytes, 1, 1);
  std::byte& byte = argument.data[100];
  const ClientCallRef call = calls.start(std::nullopt, std::move(argument));
  byte ^= std::byte{1};
  calls.call(call);
  if (GetParam() == Protection::kEncrypt) {
    EXPECT_TRUE(call->status().ok()) << "what was encrypted is what was there";
  } else {
    EXPECT_FALSE(call->status().ok());
    EXPECT_TRUE(calls.world.run_until([&] { return calls.world.server.closed; }, kSecond));
    EXPECT_TRUE(calls.world.server.closed_with.is_protocol_error());
    EXPECT_NE(calls.world.server.closed_with.message().find("changed while it was being sent"), std::string::npos)
        << calls.world.server.closed_with.to_string();
  }
  EXPECT_EQ(calls.garbage, 0);
}

TEST_P(EachMode, NothingFetchedIsLeftWhereATagWasWrong) {
  Calls calls(GetParam());
  calls.world.connect({}, {});
  endpoint::Buffer out = pattern_buffer(kBufferBytes, 0, 0);
  const auto hold = out.hold;
  auto* const memory = static_cast<TestHold*>(out.hold.get());
  endpoint::Buffer result = pattern_buffer(kBufferBytes, 1, 2);
  calls.world.server.request = [&](const ServerCallRef& call) {
    Reply reply;
    std::byte& byte = result.data[7];
    reply.buffers.push_back(std::move(result));
    reply.out_index = 0;
    calls.world.server.session->server().reply(call, std::move(reply), calls.world.network.now());
    byte ^= std::byte{1};
  };
  const ClientCallRef call = calls.call(calls.start(std::move(out), pattern_buffer(10, 1, 1)));
  if (GetParam() == Protection::kEncrypt) return;  // the copy was sealed
  EXPECT_FALSE(call->status().ok());
  EXPECT_TRUE(std::ranges::all_of(memory->bytes, [](std::byte one) { return one == std::byte{0}; }));
}

TEST_P(EachMode, CiphertextCountsTowardsWhatIsExposed) {
  Calls calls(GetParam());
  SessionOptions server;
  server.exposed_bytes_max = kBufferBytes + kBufferBytes / 2;
  calls.world.connect({}, server);
  const ClientCallRef call = calls.call(calls.start(std::nullopt, pattern_buffer(10, 1, 1)));
  if (GetParam() == Protection::kSign) {
    EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  } else {
    EXPECT_EQ(call->status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(call->status().message().find("exposed_bytes_max"), std::string::npos);
  }
}

TEST_P(EachMode, TheLimitOfMessagesHoldsExactly) {
  SessionOptions server;
  server.message_bytes_max = 20'000;
  for (const size_t beyond : {0, 1}) {
    Calls calls(GetParam());
    calls.world.connect({}, server);
    const std::string payload(server.message_bytes_max + beyond, 'p');
    const ClientCallRef call = calls.call(calls.start(std::nullopt, pattern_buffer(10, 1, 1), payload));
    EXPECT_EQ(call->status().code(), beyond == 0 ? StatusCode::kOk : StatusCode::kResourceExhausted);
  }
}

TEST_P(EachMode, EndsThatAgreeOnSomethingElseDoNotTalk) {
  for (const int what : {0, 1, 2}) {
    Calls calls(GetParam());
    if (what == 0) calls.world.client.protection.secret.fill(std::byte{2});
    if (what == 1) calls.world.client.protection.mode = Protection::kNone;
    if (what == 2)
      calls.world.client.protection.mode = GetParam() == Protection::kSign ? Protection::kEncrypt : Protection::kSign;
    calls.world.connect({}, {});
    const ClientCallRef call = calls.start(std::nullopt, pattern_buffer(10, 1, 1));
    calls.call(call);
    EXPECT_FALSE(call->status().ok());
    ASSERT_TRUE(calls.world.server.closed);
    EXPECT_NE(calls.world.server.closed_with.message().find("authentication tag"), std::string::npos);
  }
}

TEST_P(EachMode, WhatIsLentIsNotTakenInPlace) {
  Calls calls(GetParam());
  calls.world.connect({}, {});
  endpoint::PoolBlock block = client_pool().allocate(kBufferBytes).value();
  fill_pattern({block.data(), kBufferBytes}, 1, 1);
  endpoint::Buffer argument{block.data(), kBufferBytes, endpoint::kNoOwner, nullptr, {}};
  argument.lend = true;
  EXPECT_TRUE(calls.call(calls.start(std::nullopt, std::move(argument)))->status().ok());
  EXPECT_EQ(calls.garbage, 0);
  EXPECT_EQ(calls.world.server.session->endpoint().traffic().ranges_borrowed, 0);
}

TEST(ProtectionSim, IdentityChangesNothingOnTheWay) {
  World world(1);
  world.protect(choice(Protection::kIdentity));
  world.connect({}, {});
  EXPECT_EQ(world.client.session->protection(), Protection::kIdentity);
  EXPECT_FALSE(world.client.session->endpoint().seals());
}

// --- attacks -------------------------------------------------------------------------------------------

Scenario few_calls(Rng& rng) {
  Scenario scenario;
  scenario.client.geometry = scenario.server.geometry = {16, 512, 4};
  scenario.plan.limits_max.inline_bytes_max = rng.chance(0.5) ? 0 : 512;
  scenario.plan.unreachable_memory_probability = rng.chance(0.3) ? 0.4 : 0;
  scenario.plan.limits_max.messages_complete = rng.chance(0.5);
  scenario.plan.limits_max.invalidates = rng.chance(0.5);
  scenario.plan.elsewhere_probability = rng.chance(0.5) ? 0.5 : 0;
  scenario.call_count = 4;
  scenario.calls_over_ns = 50 * kMicrosecond;
  scenario.buffer_bytes_max = 5000;
  scenario.may_break = scenario.may_tamper = true;
  return scenario;
}

struct Tally {
  size_t attacks = 0;
  size_t named = 0;     // the connection ended, with an error that says what was wrong
  size_t unread = 0;    // nobody read the memory any more
  size_t accepted = 0;  // the connection went on
};

// Whether wrong bytes came to anybody is the workload's to find.
void attack(uint64_t seed, Protection mode, Attack kind, bool client_is_attacked, Tally& tally) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + name_of(kind));
  Rng rng(seed * 7919);
  const Scenario scenario = few_calls(rng);
  World world(seed, scenario.plan);
  ProtectionChoice protection = choice(mode);
  protection.limits = {1 + seed % 7, 1 + seed % 5, 20000};
  world.protect(protection);
  const auto attacker = std::make_shared<Attacker>(seed, kind, 1 + static_cast<size_t>(rng.between(0, 9)));
  world.wrap = [&](SessionEnd& end, std::unique_ptr<provider::QueuePair> qp) {
    const bool attacked = (&end == &world.client) == client_is_attacked;
    return std::make_unique<TamperedQueuePair>(std::move(qp), *end.device, attacker, attacked);
  };
  Workload calls(world, scenario, world.client, world.server);
  connect(world, scenario);
  calls.schedule_all();
  EXPECT_TRUE(world.run_until([&] { return calls.all_ended(); }, world.network.now() + 60 * kSecond));
  world.run_for(kMillisecond);  // what is on its way arrives
  calls.check_all();
  world.client.session.reset();
  world.server.session.reset();
  if (!attacker->done) return;
  ++tally.attacks;
  const SessionEnd& victim = client_is_attacked ? world.server : world.client;
  const bool named = victim.closed_with.is_protocol_error() &&
                     victim.closed_with.message().find("authentication tag") != std::string::npos;
  const bool of_memory = kind == Attack::kMemory || kind == Attack::kSwap;
  if (named)
    ++tally.named;
  else if (of_memory)
    ++tally.unread;
  else
    ++tally.accepted;
}

TEST_P(EachMode, WhateverIsChangedOnTheWayEndsTheConnection) {
  const SeedRange range = seeds(4500);
  for (size_t kind = 0; kind < static_cast<size_t>(Attack::kCount); ++kind) {
    Tally tally;
    for (uint64_t i = 0; i < range.count / static_cast<size_t>(Attack::kCount); ++i) {
      attack(range.first + i, GetParam(), static_cast<Attack>(kind), i % 2 == 0, tally);
      ASSERT_FALSE(HasFailure());
    }
    std::printf("%-10s %6zu attacks: %zu ended their connection, %zu in memory that nobody read, %zu accepted\n",
                name_of(static_cast<Attack>(kind)), tally.attacks, tally.named, tally.unread, tally.accepted);
    EXPECT_EQ(tally.accepted, 0u) << name_of(static_cast<Attack>(kind));
    EXPECT_GT(tally.named, tally.attacks / 10) << "attacks that meet nothing prove nothing";
  }
}

// Nothing but both HELLOs goes without a tag, and the keys depend on every byte of them.
TEST_P(EachMode, AChangedHelloEndsTheConnection) {
  for (const bool client_is_attacked : {false, true}) {
    size_t attacks = 0;
    for (uint64_t seed = 1; seed <= 300; ++seed) {
      Rng rng(seed);
      World world(seed, {});
      world.protect(choice(GetParam()));
      const auto attacker = std::make_shared<Attacker>(seed, Attack::kFlip, 0);
      world.wrap = [&](SessionEnd& end, std::unique_ptr<provider::QueuePair> qp) {
        const bool attacked = (&end == &world.client) == client_is_attacked;
        return std::make_unique<TamperedQueuePair>(std::move(qp), *end.device, attacker, attacked);
      };
      int served = 0;
      world.server.request = [&](const ServerCallRef&) { ++served; };
      world.dial({});
      const auto settled = [&] {
        return (world.client.ready || world.client.closed) && (world.server.ready || world.server.closed);
      };
      (void)world.run_until(settled, kSecond);
      if (world.client.ready && !world.client.closed) {
        const auto call = std::make_shared<ClientCall>();
        (void)world.client.session->client().start(call, {"m", {}, {}, std::nullopt, kNever}, world.network.now());
        world.run_for(kMillisecond);
      }
      // A flip in the header's fields that HELLO doesn't use (reserved, grants of nothing) may stay unseen.
      if (served == 0) ++attacks;
      const std::string& was = attacker->sent.front();
      EXPECT_TRUE(served == 0 || attacker->changed_at < sizeof(endpoint::MessageHeader)) << was.size();
    }
    EXPECT_GT(attacks, 250u);
  }
}

}  // namespace
}  // namespace rrpc::rpc
