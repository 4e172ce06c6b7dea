// The receives of messages that one poll finds are posted anew with one call, and nothing is granted before.
#include "session_world.h"
#include "tampering.h"

namespace rrpc::rpc {
namespace {

constexpr size_t kCalls = 8;

class CountingQueuePair : public TamperedQueuePair {
 public:
  CountingQueuePair(std::unique_ptr<provider::QueuePair> inner, provider::Device& device, std::vector<size_t>& posted)
      : TamperedQueuePair(std::move(inner), device, std::make_shared<Attacker>(1, Attack::kFlip, 0), false),
        posted_(posted) {}
  Status post_receive(const provider::ReceiveRequest& request) override {
    posted_.push_back(1);
    return TamperedQueuePair::post_receive(request);
  }
  Status post_receives(std::span<const provider::ReceiveRequest> requests) override {
    posted_.push_back(requests.size());
    return TamperedQueuePair::post_receives(requests);
  }

 private:
  std::vector<size_t>& posted_;
};

// Calls whose requests are all at the server before it polls once.
void call(World& world) {
  for (size_t i = 0; i < kCalls; ++i)
    EXPECT_TRUE(
        world.client.session->client()
            .start(std::make_shared<ClientCall>(), {"m", as_bytes("p"), {}, std::nullopt, kNever}, world.network.now())
            .ok());
  while (world.network.step()) {
  }
  world.server.pump(world.network.now());
}

struct Reposting : ::testing::Test {
  Reposting() {
    world.wrap = [this](SessionEnd& end,
                        std::unique_ptr<provider::QueuePair> qp) -> std::unique_ptr<provider::QueuePair> {
      if (&end == &world.client) return qp;
      return std::make_unique<CountingQueuePair>(std::move(qp), *end.device, posted);
    };
    world.dial({});
    EXPECT_TRUE(world.run_until([&] { return world.client.ready && world.server.ready; }, kSecond));
    world.client.call_done = [this](const ClientCallRef& call) { done += call->status().ok() ? 1 : 0; };
  }
  void call() {
    posted.clear();
    rpc::call(world);
  }

  World world{1};
  std::vector<size_t> posted;  // by each call
  size_t done = 0;
};

TEST_F(Reposting, WhatOnePollFindsIsOneCall) {
  std::vector<ServerCallRef> waiting;
  world.server.request = [&](const ServerCallRef& call) { waiting.push_back(call); };
  call();
  EXPECT_EQ(waiting.size(), kCalls);
  EXPECT_EQ(posted, std::vector<size_t>{kCalls});
}

TEST(SharedReposting, WhatOnePollFindsIsOneCall) {
  World world(1);
  world.share_receives(512);
  world.dial({});
  ASSERT_TRUE(world.run_until([&] { return world.client.ready && world.server.ready; }, kSecond));
  std::vector<ServerCallRef> waiting;
  world.server.request = [&](const ServerCallRef& request) { waiting.push_back(request); };
  const auto& queue = static_cast<provider::sim::SimSharedReceiveQueue&>(world.shared_ring->queue());
  const uint64_t before = queue.calls_of_post();
  call(world);
  EXPECT_EQ(waiting.size(), kCalls);
  EXPECT_EQ(queue.calls_of_post() - before, 1u);
  EXPECT_EQ(queue.posted_count(), world.shared_ring->slots());
}

TEST_F(Reposting, AReplyGrantsWhatWasPostedBeforeIt) {
  world.server.request = [&](const ServerCallRef& call) {
    world.server.session->server().reply(call, {}, world.network.now());
  };
  call();
  EXPECT_EQ(posted, std::vector<size_t>(kCalls, 1)) << "each is posted before the next call's reply";
  EXPECT_TRUE(world.run_until([&] { return done == kCalls; }, world.network.now() + kSecond));
  EXPECT_EQ(world.network.violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace rrpc::rpc
