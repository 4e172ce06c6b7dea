// Memory that is open to a peer or lent to a device, through a whole call: when it is let go, what it is registered
// for, what is counted.
#include "session_world.h"

namespace rrpc::rpc {
namespace {

constexpr size_t kBufferBytes = 20000;

// A client and a server that answers every call with a buffer.
struct Calls {
  Calls() : world(1) {
    world.server.request = [this](const ServerCallRef& call) {
      Reply reply;
      reply.buffers.push_back(pattern_buffer(kBufferBytes, 1, 2));
      if (call->out_bytes() > 0) reply.out_index = 0;
      world.server.session->server().reply(call, std::move(reply), world.network.now());
    };
  }
  void connect() { world.connect({}, {}); }
  FaultPlan& plan() { return world.network.plan(); }
  const endpoint::Counters& client_traffic() { return world.client.session->endpoint().traffic(); }

  // A call with one argument, and memory for its result if wanted. Done when it comes back.
  ClientCallRef call(std::optional<endpoint::Buffer> out = std::nullopt) {
    auto call = std::make_shared<ClientCall>();
    CallRequest request{"m", as_bytes("p"), {}, std::move(out), kNever};
    request.buffers.push_back(pattern_buffer(kBufferBytes, 1, 1));
    const Status status = world.client.session->client().start(call, std::move(request), world.network.now());
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(world.run_until([&] { return call->done(); }, world.network.now() + kSecond));
    return call;
  }
  ~Calls() { EXPECT_EQ(world.network.violations(), std::vector<std::string>()); }

  World world;
};

TEST(Exposure, WhatIsBeingRevokedStaysUntilThatIsOver) {
  const int holds = TestHold::live();
  const Holdings before = Holdings::now();
  Calls calls;
  calls.plan().slow_revocation_probability = 1;
  calls.plan().revocation_delay_ns_max = 500 * kMillisecond;
  calls.connect();
  ASSERT_TRUE(calls.call(pattern_buffer(kBufferBytes, 0, 0))->status().ok());
  EXPECT_EQ(calls.world.client.session->endpoint().revocations_under_way(), 2u);
  EXPECT_EQ(calls.client_traffic().exposures_live, 2) << "still open, and counted so";
  EXPECT_GE(TestHold::live(), holds + 2) << "the argument and the out= memory";
  calls.world.run_for(kSecond);
  EXPECT_EQ(TestHold::live(), holds);
  EXPECT_EQ(Holdings::now(), before);
}

TEST(Exposure, AConnectionThatHasEndedIsQuietOnceItsRevocationsAre) {
  const int holds = TestHold::live();
  const Holdings before = Holdings::now();
  Calls calls;
  calls.plan().slow_revocation_probability = 1;
  calls.plan().revocation_delay_ns_max = 500 * kMillisecond;
  calls.connect();
  ASSERT_TRUE(calls.call()->status().ok());
  calls.world.client.session->close(unavailable("leaving"));
  EXPECT_FALSE(calls.world.client.session->quiet());
  calls.world.run_for(kSecond);
  EXPECT_TRUE(calls.world.client.session->quiet());
  EXPECT_EQ(TestHold::live(), holds) << "while the session is still there";
  EXPECT_EQ(Holdings::now(), before);
}

TEST(Exposure, AQueuePairThatIsDestroyedEndsItsRevocations) {
  const int holds = TestHold::live();
  const Holdings before = Holdings::now();
  Calls calls;
  calls.plan().slow_revocation_probability = 1;
  calls.plan().revocation_delay_ns_max = kNever / 2;
  calls.connect();
  ASSERT_TRUE(calls.call()->status().ok());
  calls.world.client.session->close(unavailable("leaving"));
  calls.world.run_for(kMillisecond);
  calls.world.client.session.reset();
  calls.world.server.session.reset();
  EXPECT_EQ(TestHold::live(), holds);
  EXPECT_EQ(Holdings::now(), before);
}

TEST(Exposure, WantOfPinnedMemoryFailsOneCallAndNotTheConnection) {
  Calls calls;
  calls.connect();
  calls.plan().adopt_refused_probability = 1;
  EXPECT_EQ(calls.call()->status().code(), StatusCode::kResourceExhausted);
  calls.plan().adopt_refused_probability = 0;
  EXPECT_TRUE(calls.call()->status().ok());
  EXPECT_FALSE(calls.world.client.closed || calls.world.server.closed);
}

TEST(Exposure, DedicatedReadSinksAreRegisteredForOneTransfer) {
  Calls calls;
  calls.plan().limits_max.dedicated_read_sinks = true;
  calls.connect();
  ASSERT_TRUE(calls.call()->status().ok());
  for (int i = 0; i < 3; ++i) {
    const int64_t made = endpoint::total(&endpoint::Counters::registrations_made);
    ASSERT_TRUE(calls.call()->status().ok());
    // The argument's landing, the result's, and the two buffers, which have no owner to be cached by.
    EXPECT_EQ(endpoint::total(&endpoint::Counters::registrations_made) - made, 4);
  }
}

TEST(Exposure, SharedRegionsServeOtherDevices) {
  Calls calls;
  calls.connect();
  ASSERT_TRUE(calls.call()->status().ok());
  const int64_t made = endpoint::total(&endpoint::Counters::registrations_made);
  ASSERT_TRUE(calls.call()->status().ok());
  EXPECT_EQ(endpoint::total(&endpoint::Counters::registrations_made) - made, 2) << "the two buffers alone";
}

TEST(Exposure, CountedByTheWayTheyAreKept) {
  using Counter = std::atomic<int64_t> endpoint::Counters::*;
  const std::pair<provider::ExposureKind, Counter> kinds[] = {
      {provider::ExposureKind::kWindow, &endpoint::Counters::exposures_by_window},
      {provider::ExposureKind::kRegistration, &endpoint::Counters::exposures_by_registration},
      {provider::ExposureKind::kChecked, &endpoint::Counters::exposures_by_check},
  };
  for (const auto& [kind, counter] : kinds) {
    Calls calls;
    calls.plan().exposure_kind = kind;
    calls.connect();
    const int64_t before = endpoint::total(counter);
    ASSERT_TRUE(calls.call()->status().ok());
    EXPECT_EQ(endpoint::total(counter) - before, 2) << "the argument and the result";
    for (const auto& [other_kind, other] : kinds) EXPECT_EQ(calls.client_traffic().*other, other_kind == kind ? 1 : 0);
  }
}

}  // namespace
}  // namespace rrpc::rpc
