// Many clients on one shared ring: what each is granted never adds up to more than there is, and no receive is lost
// when a connection dies.
#include "session_world.h"
#include "tampering.h"

namespace rrpc::rpc {
namespace {

using endpoint::ReceiveShare;

struct Hub : World {
  explicit Hub(uint64_t seed, uint32_t slots) : World(seed) { share_receives(slots); }

  // A client's end and the server's end of one connection.
  struct Line {
    Line(Hub& hub, int number)
        : client(hub.network, "client" + std::to_string(number), client_pool()),
          server(hub.network, "server", server_pool()) {}
    SessionEnd client, server;
    int calls_done = 0;
  };
  Line& connect_line() {
    lines.push_back(std::make_unique<Line>(*this, static_cast<int>(lines.size())));
    Line& line = *lines.back();
    SessionEnd& server_end = line.server;
    server_end.request = [this, &server_end](const ServerCallRef& call) {
      server_end.session->server().reply(call, {}, network.now());
    };
    line.client.call_done = [&line](const ClientCallRef& call) { line.calls_done += call->status().ok() ? 1 : 0; };
    const auto config = endpoint::queue_pair_config(SessionOptions().geometry);
    auto cq = line.client.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto qp = line.client.device->open(*cq, "server:1", config, kNever).value();
    line.client.make(Role::kClient, std::move(cq), std::move(qp), {}, network.now());
    while (!accept_for(line.server) && network.step()) {
    }
    pump_until([&] { return line.client.ready; });
    EXPECT_TRUE(line.client.ready);
    return line;
  }
  void call(Line& line, int count) {
    for (int i = 0; i < count && !line.client.failed(); ++i)
      (void)line.client.session->client().start(std::make_shared<ClientCall>(),
                                                {"m", as_bytes("p"), {}, std::nullopt, kNever}, network.now());
  }
  template <typename Predicate>
  void pump_until(Predicate done) {
    while (!done() && network.step()) {
      const bool idle = network.next_event_time() == kNever;
      for (const auto& line : lines) {
        if (!idle && rng.chance(0.3)) continue;
        line->client.pump(network.now());
        line->server.pump(network.now());
      }
    }
  }
  void expect_whole() {
    EXPECT_EQ(shared_ring->slots_reserved(), 0u);
    EXPECT_EQ(receives_posted(), shared_ring->slots());
    EXPECT_EQ(network.violations(), std::vector<std::string>());
  }

  std::vector<std::unique_ptr<Line>> lines;
};

TEST(SharedRing, SharesShrinkAsTheStockRunsLowAndAreRefusedWhenItIsOut) {
  World world(1);
  world.share_receives(512);
  std::vector<ReceiveShare> shares;
  uint32_t total = 0, last = 64;
  Status refusal;
  while (refusal.ok()) {
    auto share = world.shared_ring->reserve(64);
    refusal = share.status();
    if (!share.ok()) break;
    EXPECT_LE(share->slots(), last);
    EXPECT_TRUE(endpoint::validate({share->slots(), 8192, 1}).ok()) << share->slots();
    last = share->slots();
    total += last;
    shares.push_back(std::move(*share));
  }
  EXPECT_EQ(shares.front().slots(), 64u);
  EXPECT_EQ(last, kRingSlotsMin);
  EXPECT_EQ(total, 512u);
  EXPECT_GT(shares.size(), 512u / 64);
  EXPECT_EQ(refusal.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refusal.message().find("shared_receive_slots"), std::string::npos);
  shares.pop_back();
  EXPECT_TRUE(world.shared_ring->reserve(64).ok());
  shares.clear();
  EXPECT_EQ(world.shared_ring->slots_reserved(), 0u);
  EXPECT_EQ(endpoint::SharedRing::create(*world.server.device, *world.listener, 8, 512).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SharedRing, TheLimitsEventIsCountedOnceForEachTimeThatReceivesRunLow) {
  World world(1);
  world.share_receives(64);
  auto& queue = static_cast<provider::sim::SimSharedReceiveQueue&>(world.shared_ring->queue());
  const int64_t low = endpoint::total(&endpoint::Counters::shared_receive_low);
  for (int round = 1; round <= 3; ++round) {
    std::vector<std::shared_ptr<provider::sim::ReceiveSlot>> taken;
    for (int i = 0; i < 60; ++i) taken.push_back(queue.take());
    for (int i = 0; i < 3; ++i) (void)world.shared_ring->reserve(16);
    EXPECT_EQ(endpoint::total(&endpoint::Counters::shared_receive_low), low + round);
    for (const auto& slot : taken) queue.post_again(*slot);
  }
}

TEST(SharedRing, ManyClientsDrawFromOneRing) {
  for (uint64_t seed = 1; seed <= seeds(40).count; ++seed) {
    SCOPED_TRACE(seed);
    Hub hub(seed, 128);
    for (int i = 0; i < 5; ++i) hub.connect_line();
    EXPECT_LE(hub.shared_ring->slots_reserved(), 128u);
    for (const auto& line : hub.lines) hub.call(*line, 100);
    hub.pump_until([&] {
      return std::all_of(hub.lines.begin(), hub.lines.end(), [](const auto& line) { return line->calls_done == 100; });
    });
    for (const auto& line : hub.lines) EXPECT_EQ(line->calls_done, 100);
    hub.lines.clear();
    hub.expect_whole();
    if (HasFailure()) return;
  }
}

TEST(SharedRing, ConnectionsThatDieLoseNoReceive) {
  for (uint64_t seed = 1; seed <= seeds(200).count; ++seed) {
    SCOPED_TRACE(seed);
    Hub hub(seed, 64);
    for (int round = 0; round < 4; ++round) {
      Hub::Line& stays = hub.connect_line();
      Hub::Line& dies = hub.connect_line();
      hub.call(stays, 30);
      hub.call(dies, 30);
      const TimeNs end = hub.network.now() + hub.rng.between(0, 60 * kMicrosecond);
      hub.network.schedule(end - hub.network.now(), [] {});
      hub.pump_until([&] { return hub.network.now() >= end; });
      SessionEnd& first = hub.rng.chance(0.5) ? dies.client : dies.server;
      if (hub.rng.chance(0.5))
        first.session->close(unavailable("leaves"));
      else
        first.session.reset();
      hub.pump_until([&] { return stays.calls_done == 30; });
      EXPECT_EQ(stays.calls_done, 30) << "the other connection must not suffer";
      hub.lines.clear();
      hub.expect_whole();
    }
    if (HasFailure()) return;
  }
}

// As a device tells of a connection whose completion queue was overrun.
class OverrunQueuePair : public TamperedQueuePair {
 public:
  OverrunQueuePair(std::unique_ptr<provider::QueuePair> inner, provider::Device& device)
      : TamperedQueuePair(std::move(inner), device, std::make_shared<Attacker>(1, Attack::kFlip, 0), false) {}
  bool lost_receives() const override { return true; }
};

TEST(SharedRing, AShareOfWhichReceivesWereLostIsNobodyElses) {
  Hub hub(1, 64);
  hub.wrap = [&](SessionEnd& end, std::unique_ptr<provider::QueuePair> qp) -> std::unique_ptr<provider::QueuePair> {
    if (hub.lines.empty() || &end != &hub.lines.front()->server) return qp;
    return std::make_unique<OverrunQueuePair>(std::move(qp), *end.device);
  };
  hub.connect_line();
  const uint32_t lost = hub.shared_ring->slots_reserved();
  EXPECT_GT(lost, 0u);
  hub.connect_line();
  EXPECT_GT(hub.shared_ring->slots_reserved(), lost);
  hub.lines.clear();
  EXPECT_EQ(hub.shared_ring->slots_reserved(), lost);
}

TEST(SharedRing, AMalformedMessageGivesItsSlotBack) {
  for (const bool after_end : {false, true}) {
    Hub hub(1, 16);
    Hub::Line& line = hub.connect_line();
    const Bytes part = as_bytes("not a reply");
    line.client.session->endpoint().send(kReply, {&part, 1});
    line.client.session->endpoint().send(kReply, {&part, 1});
    if (after_end) line.server.session->close(unavailable("leaves"));
    hub.network.run_for(kMillisecond);
    line.server.pump(hub.network.now());
    EXPECT_TRUE(line.server.closed);
    hub.lines.clear();
    hub.expect_whole();
  }
}

}  // namespace
}  // namespace rrpc::rpc
