// When a session asks whether its peer is there, and what it makes of silence; over the simulated network.
#include "raw_peer.h"

namespace rrpc::rpc {
namespace {

TEST(KeepAlive, SendsThatGoOutAreNoSignOfLife) {
  SessionOptions options;
  options.keepalive_interval = options.keepalive_timeout = kSecond;
  RawClient raw(options);
  raw.world.network.schedule(0, [] {});
  const TimeNs start = raw.world.network.now();
  std::vector<ClientCallRef> calls;
  for (int i = 0; i < 400 && !raw.end().closed; ++i) {  // the peer's device takes them, the peer is mute
    calls.push_back(raw.start_call());
    raw.world.network.run_for(10 * kMillisecond);
    raw.end().pump(raw.world.network.now());
  }
  ASSERT_TRUE(raw.end().closed);
  EXPECT_EQ(raw.end().closed_with.code(), StatusCode::kUnavailable);
  EXPECT_LE(raw.world.network.now() - start, 2 * kSecond + 600 * kMillisecond);
  for (const ClientCallRef& call : calls) EXPECT_EQ(call->status().code(), StatusCode::kUnavailable);
}

// A client both of whose send buffers are on their way for `completion_delay`, with no memory for more. A PING is due
// after a second without a sign of life.
class WithoutSendBuffers : public ::testing::Test {
 protected:
  void take_buffers(TimeNs completion_delay) {
    FaultPlan& plan = raw_.world.network.plan();
    const FaultPlan before = plan;
    plan.adopt_refused_probability = 1;
    plan.completion_delay_ns_min = plan.completion_delay_ns_max = completion_delay;
    start_ = raw_.world.network.now();
    for (int i = 0; i < 2; ++i) {
      const std::string payload(200, 'p');  // more than goes inline
      CallRequest request{"m", as_bytes(payload), {}, std::nullopt, kNever};
      ASSERT_TRUE(raw_.session().client().start(std::make_shared<ClientCall>(), std::move(request), start_).ok());
    }
    (void)raw_.run();
    plan.completion_delay_ns_min = before.completion_delay_ns_min;
    plan.completion_delay_ns_max = before.completion_delay_ns_max;
    ASSERT_FALSE(raw_.session().endpoint().can_send(kPing));
  }
  // Gives when the first PING came to the peer, kNever if the connection ended before.
  TimeNs ping_after() {
    while (!raw_.end().closed) {
      raw_.world.network.schedule(kMillisecond, [] {});
      for (const RawPeer::Message& message : raw_.run())
        if (message.header.type == kPing) return passed();
    }
    return kNever;
  }
  TimeNs end_after() {
    while (!raw_.end().closed) {
      raw_.world.network.schedule(kMillisecond, [] {});
      (void)raw_.run();
    }
    return passed();
  }
  TimeNs passed() { return raw_.world.network.now() - start_; }

  static SessionOptions options() {
    SessionOptions options;
    options.keepalive_interval = options.keepalive_timeout = kSecond;
    return options;
  }
  static constexpr TimeNs kStep = 500 * kMillisecond;  // of the timers
  RawClient raw_{options()};
  TimeNs start_ = 0;
};

TEST_F(WithoutSendBuffers, ALatePingGoesOutAndItsTimeBeginsThen) {
  take_buffers(1900 * kMillisecond);
  const TimeNs asked = ping_after();
  ASSERT_NE(asked, kNever) << raw_.end().closed_with.to_string();
  EXPECT_GE(asked, 1900 * kMillisecond);
  raw_.peer.send(kPong, "");
  (void)raw_.run();
  const TimeNs asked_again = ping_after();
  ASSERT_NE(asked_again, kNever) << raw_.end().closed_with.to_string();
  const TimeNs ended = end_after();
  EXPECT_GE(ended - asked_again, kSecond);
  EXPECT_LE(ended - asked_again, kSecond + kStep + 100 * kMillisecond);
}

TEST_F(WithoutSendBuffers, AMutePeerHasAllOfItsTimeAfterALatePing) {
  take_buffers(1900 * kMillisecond);
  const TimeNs asked = ping_after();
  ASSERT_NE(asked, kNever) << raw_.end().closed_with.to_string();
  const TimeNs ended = end_after();
  EXPECT_GE(ended - asked, kSecond);
  EXPECT_LE(ended - asked, kSecond + kStep + 100 * kMillisecond);
}

TEST_F(WithoutSendBuffers, ADeviceThatGivesNoneBackEndsTheConnection) {
  take_buffers(3600 * kSecond);
  EXPECT_LE(end_after(), 2 * kSecond + 2 * kStep);
  EXPECT_NE(raw_.end().closed_with.message().find("found no send buffer"), std::string::npos)
      << raw_.end().closed_with.to_string();
}

TEST(KeepAlive, ASilentPeerIsFoundAndALivelyOneKept) {
  SessionOptions options;
  options.keepalive_interval = kSecond;
  options.keepalive_timeout = 2 * kSecond;
  World world(1);
  world.connect(options, options);
  world.run_for(30 * kSecond);
  EXPECT_FALSE(world.client.closed || world.server.closed) << "an idle connection stays";
  world.network.cut("client", "server");
  const TimeNs cut_at = world.network.now();
  world.run_until([&] { return world.client.closed && world.server.closed; }, cut_at + 10 * kSecond);
  ASSERT_TRUE(world.client.closed && world.server.closed);
  EXPECT_LE(world.network.now() - cut_at, 3 * kSecond + 600 * kMillisecond);
  EXPECT_NE(world.client.closed_with.message().find("silent"), std::string::npos);
}

}  // namespace
}  // namespace rrpc::rpc
