// A reply closes one of the ranges that its call has opened, where both ends can do that. The queue pairs here say
// which of them can, and note what messages close.
#include "session_world.h"
#include "tampering.h"

namespace rrpc::rpc {
namespace {

constexpr size_t kBufferBytes = 20000;

class WindowedQueuePair : public TamperedQueuePair {
 public:
  WindowedQueuePair(std::unique_ptr<provider::QueuePair> inner, provider::Device& device, bool invalidates,
                    std::vector<uint32_t>& closed)
      : TamperedQueuePair(std::move(inner), device, std::make_shared<Attacker>(1, Attack::kFlip, 0), false),
        limits_(TamperedQueuePair::limits()),
        closed_(closed) {
    limits_.invalidates = invalidates;
  }
  const provider::QueuePairLimits& limits() const override { return limits_; }
  Status post_send(std::span<const provider::WorkRequest> requests) override {
    for (const provider::WorkRequest& request : requests)
      if (request.invalidate_rkey != 0) closed_.push_back(request.invalidate_rkey);
    return TamperedQueuePair::post_send(requests);
  }
  Result<uint32_t> expose(const provider::MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override {
    auto rkey = TamperedQueuePair::expose(region, address, length_bytes, access);
    if (rkey.ok()) opened.push_back(*rkey);
    return rkey;
  }

  std::vector<uint32_t> opened;

 private:
  provider::QueuePairLimits limits_;
  std::vector<uint32_t>& closed_;
};

struct Windows {
  bool at_client = true;
  bool at_server = true;
};

struct InvalidationTest : ::testing::Test {
  void connect(Windows windows = {}) {
    world.wrap = [this, windows](SessionEnd& end, std::unique_ptr<provider::QueuePair> qp) {
      const bool client = &end == &world.client;
      auto wrapped = std::make_unique<WindowedQueuePair>(std::move(qp), *end.device,
                                                         client ? windows.at_client : windows.at_server,
                                                         client ? closed_by_client : closed_by_server);
      if (client) client_qp = wrapped.get();
      return wrapped;
    };
    world.server.request = [this](const ServerCallRef& call) {
      Reply reply;
      reply.payload = as_bytes(answer);
      world.server.session->server().reply(call, std::move(reply), world.network.now());
    };
    world.network.plan().limits_max.invalidates = true;
    world.connect({}, {});
  }
  Status call(size_t buffer_count, std::string_view payload = "p") {
    client_qp->opened.clear();
    auto call = std::make_shared<ClientCall>();
    CallRequest request{"m", as_bytes(payload), {}, std::nullopt, kNever};
    for (size_t i = 0; i < buffer_count; ++i) request.buffers.push_back(pattern_buffer(kBufferBytes, 1, i));
    if (out) request.out = pattern_buffer(kBufferBytes, 0, 0);
    RRPC_RETURN_IF_ERROR(world.client.session->client().start(call, std::move(request), world.network.now()));
    EXPECT_TRUE(world.run_until([&] { return call->done(); }, world.network.now() + kSecond));
    return call->status();
  }
  int64_t counted() { return world.server.session->endpoint().traffic().exposures_invalidated; }

  World world{1};
  std::string answer = "answer";
  bool out = false;
  WindowedQueuePair* client_qp = nullptr;
  std::vector<uint32_t> closed_by_client;
  std::vector<uint32_t> closed_by_server;
};

TEST_F(InvalidationTest, AReplyClosesTheFirstArgument) {
  connect();
  ASSERT_TRUE(call(3).ok());
  ASSERT_EQ(client_qp->opened.size(), 3u);
  EXPECT_EQ(closed_by_server, std::vector<uint32_t>{client_qp->opened[0]});
  EXPECT_EQ(counted(), 1);
  EXPECT_TRUE(closed_by_client.empty()) << "neither a request nor a DONE closes anything";
}

TEST_F(InvalidationTest, AReplyThatIsItselfFetchedDoesToo) {
  connect();
  answer.assign(100'000, 'a');
  ASSERT_TRUE(call(1).ok());
  EXPECT_EQ(closed_by_server, client_qp->opened);
}

TEST_F(InvalidationTest, ALongRequestIsClosedInstead) {
  connect();
  ASSERT_TRUE(call(1, std::string(100'000, 'p')).ok());
  ASSERT_EQ(client_qp->opened.size(), 2u) << "the argument, then the body";
  EXPECT_EQ(closed_by_server, std::vector<uint32_t>{client_qp->opened[1]});
}

TEST_F(InvalidationTest, MemoryForTheResultIsClosedWhereThereIsNoArgument) {
  connect();
  out = true;
  (void)call(0);
  ASSERT_EQ(client_qp->opened.size(), 1u);
  EXPECT_EQ(closed_by_server, client_qp->opened);
}

TEST_F(InvalidationTest, ACallWithoutBuffersClosesNothing) {
  connect();
  ASSERT_TRUE(call(1).ok());
  closed_by_server.clear();
  ASSERT_TRUE(call(0).ok());
  EXPECT_TRUE(closed_by_server.empty());
}

// As of an older release, which says nothing of windows.
TEST_F(InvalidationTest, AClientThatHasNotSaidSoClosesByItself) {
  connect({.at_client = false});
  ASSERT_TRUE(call(1).ok());
  EXPECT_TRUE(closed_by_server.empty());
}

TEST_F(InvalidationTest, AServerThatCannotSendThemSendsNone) {
  connect({.at_server = false});
  ASSERT_TRUE(call(1).ok());
  EXPECT_TRUE(closed_by_server.empty());
}

}  // namespace
}  // namespace rrpc::rpc
