// Calls from a server to its client, over the connection that the client made; nested, with large buffers, and cut off
// at every point.
#include <functional>

#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

constexpr size_t kLargeBytes = 3 << 20;

// A server with workers, at either end. Methods: echo; down (payload: a number; calls down at its caller with one less,
// with the buffers that it got, and sends back what comes); hold (until release()).
class Party {
 public:
  explicit Party(const std::string& transport, int workers = 8, const Options& options = {})
      : server_(std::make_shared<Server>(secured(transport, options, "server"))) {
    if (!transport.empty()) address_ = server_->listen(new_address(transport)).value();
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Party() {
    release();
    server_->stop();
    for (std::thread& worker : workers_) worker.join();
  }
  const std::shared_ptr<Server>& server() { return server_; }
  const std::string& address() const { return address_; }
  void release() { released_ = true; }
  bool holds() const { return holding_ > 0; }
  std::unique_ptr<Client> call(const std::string& address, const Options& options = {}) {
    auto client = Client::connect(address, secured(address, options, "client"), patiently_ms(10'000), server_);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return client.ok() ? std::move(*client) : nullptr;
  }

 private:
  void work() {
    Work work;
    while (true) {
      const NextResult next = server_->next(work, kNever, kUninterrupted);
      if (next == NextResult::kEnded) return;
      if (next != NextResult::kWork) continue;
      const std::string payload(as_text(work.call->payload()));
      rpc::Reply reply;
      std::string answer = payload;
      std::vector<endpoint::Buffer> buffers;
      for (const endpoint::ReceivedBlock& block : work.call->blocks())
        buffers.push_back(owning_buffer({block.data(), block.data() + block.size()}));
      if (work.call->method() == "down" && payload != "0") {
        reply.status = go_down(work, std::stoi(payload) - 1, answer, buffers);
      } else if (work.call->method() == "hold") {
        ++holding_;
        while (!released_ && !work.call->given_up()) sleep_ms(1);
        --holding_;
      }
      reply.payload = as_bytes(answer);
      reply.buffers = std::move(buffers);
      const uint64_t handle = std::exchange(work, Work()).handle;
      (void)server_->reply(handle, std::move(reply));
    }
  }
  Status go_down(const Work& work, int depth, std::string& answer, std::vector<endpoint::Buffer>& buffers) {
    auto peer = Client::of_peer(server_, work.handle);
    if (!peer.ok()) return peer.status();
    TestCall call(**peer, "down", std::to_string(depth), work.call->deadline(), std::move(buffers));
    buffers.clear();
    RRPC_RETURN_IF_ERROR(call.wait());
    answer = call.text() + " " + answer;
    for (const endpoint::ReceivedBlock& block : (*call).blocks())
      buffers.push_back(owning_buffer({block.data(), block.data() + block.size()}));
    return {};
  }

  const std::shared_ptr<Server> server_;
  std::string address_;
  std::atomic<bool> released_{false};
  std::atomic<int> holding_{0};
  std::vector<std::thread> workers_;
};

Options polled(PollMode mode) {
  Options options;
  options.poll = mode;
  return options;
}

class CallbacksTest : public ::testing::TestWithParam<std::tuple<std::string, PollMode>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  Options options() const { return polled(std::get<1>(GetParam())); }
};

TEST_P(CallbacksTest, CallsNestBothWaysWithLargeBuffers) {
  Party there(transport(), 8, options());
  Party here("", 8, options());
  auto client = here.call(there.address(), options());
  for (int depth = 0; depth <= 6; ++depth) {
    std::vector<endpoint::Buffer> buffers;
    if (depth % 2 == 0) buffers.push_back(owning_buffer(pattern(kLargeBytes, static_cast<uint64_t>(depth))));
    TestCall call(*client, "down", std::to_string(depth), patiently_ms(20'000), std::move(buffers));
    ASSERT_TRUE(call.wait().ok()) << call.wait().to_string();
    std::string expected = "0";
    for (int i = 1; i <= depth; ++i) expected.append(" ").append(std::to_string(i));
    EXPECT_EQ(call.text(), expected);
    ASSERT_EQ((*call).blocks().size(), depth % 2 == 0 ? 1u : 0u);
    if (depth % 2 == 0) {
      const endpoint::ReceivedBlock& block = (*call).blocks().front();
      EXPECT_EQ(std::vector<std::byte>(block.data(), block.data() + block.size()),
                pattern(kLargeBytes, static_cast<uint64_t>(depth)));
    }
  }
}

TEST_P(CallbacksTest, ManyCallersAndTheirCallbacksAtATime) {
  constexpr int kThreads = 4;
  Party there(transport(), kThreads * 2, options());
  Party here("", kThreads * 2, options());
  auto client = here.call(there.address(), options());
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < scaled(150); ++i) {
        std::vector<endpoint::Buffer> buffers;
        if (i % 50 == 0) buffers.push_back(owning_buffer(pattern(kLargeBytes, 1)));
        TestCall call(*client, "down", std::to_string((i + t) % 4), patiently_ms(30'000), std::move(buffers));
        const Status status = call.wait();
        EXPECT_TRUE(status.ok()) << status.to_string();
        if (status.ok()) ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, kThreads * scaled(150));
  EXPECT_EQ(client->calls_in_flight(), 0u);
}

TEST_P(CallbacksTest, TheOnlyWorkerIsWokenForACallback) {
  Options quiet = options();
  quiet.session.keepalive_interval = kNever;  // no timer wakes it
  Party there(transport(), 1, quiet);
  Party here("", 1, quiet);
  auto client = here.call(there.address(), quiet);
  for (int i = 0; i < 20; ++i) {
    TestCall call(*client, "down", "1");
    ASSERT_TRUE(call.wait(patiently_ms(10'000)).ok()) << "call " << i;
  }
}

TEST_P(CallbacksTest, ACallbackThatTheClientDoesNotAnswerEndsWithIt) {
  Party there(transport(), 2, options());
  for (const bool drops : {false, true}) {
    Party here("", 2, options());
    auto client = here.call(there.address(), options());
    TestCall call(*client, "down", "1", patiently_ms(10'000));
    ASSERT_TRUE(call.wait().ok());
    TestCall held(*client, "hold", "");
    ASSERT_TRUE(eventually([&] { return there.holds(); }));
    bool usable = true;
    ASSERT_TRUE(client->on_done(held.ref(), [&usable, which = client.get()] { usable = which->usable(); }));
    if (drops)
      client.reset();
    else
      client->close();
    EXPECT_EQ(held.ref()->status().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(usable) << "who hears of the end makes no other call here";
    EXPECT_TRUE(eventually([&] { return !there.holds(); })) << "told that its client is gone";
  }
  EXPECT_TRUE(eventually([&] { return there.server()->connection_count() == 0; }));
}

TEST_P(CallbacksTest, AServerStopsWhileItsHandlersWaitForTheirCallers) {
  auto there = std::make_unique<Party>(transport(), 4, options());
  Party here("", 1, options());
  auto client = here.call(there->address(), options());
  TestCall taken(*client, "hold", "");  // the client's own worker stays free
  std::vector<std::unique_ptr<TestCall>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(std::make_unique<TestCall>(*client, "down", "2"));
  there.reset();
  for (auto& call : calls) {
    const Status status = call->wait();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnavailable) << status.to_string();
  }
  EXPECT_FALSE(client->usable());
}

TEST_P(CallbacksTest, AClientThatDrainsIsCalledNoMore) {
  Party there(transport(), 4, options());
  Party here("", 4, options());
  auto client = here.call(there.address(), options());
  TestCall held(*client, "hold", "");
  ASSERT_TRUE(eventually([&] { return there.holds(); }));
  (void)here.server()->drain(patiently_ms(5000));
  here.server()->stop();
  EXPECT_EQ(held.wait().code(), StatusCode::kUnavailable) << "its connection ends with the server that serves on it";
  EXPECT_EQ(Client::connect(there.address(), options(), patiently_ms(5000), here.server()).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(CallbacksTest, OnlyAClientThatServesCanBeCalled) {
  Party there(transport(), 2, options());
  auto client = connect_to(there.address(), options());
  TestCall call(*client, "down", "1");
  const Status status = call.wait();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("connected without serve="), std::string::npos) << status.message();
  EXPECT_EQ(Client::of_peer(there.server(), 1'000'000).status().code(), StatusCode::kNotFound);
}

TEST_P(CallbacksTest, AServerServesOnManyConnections) {
  Party first(transport(), 2, options()), second(transport(), 2, options());
  Party here("", 2, options());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(here.call(first.address(), options()));
    clients.push_back(here.call(second.address(), options()));
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& client : clients) {
      TestCall call(*client, "down", "1", patiently_ms(10'000));
      EXPECT_TRUE(call.wait().ok()) << call.wait().to_string();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CallbacksTest,
                         ::testing::Combine(::testing::ValuesIn(transports_under_test()),
                                            ::testing::Values(PollMode::kAdaptive, PollMode::kEvent)),
                         [](const auto& way) { return test_name(std::get<0>(way.param), std::get<1>(way.param)); });

}  // namespace
}  // namespace rrpc::driver::testing
