// How many calls run and wait on a server, and what ends one that waits.

#include <mutex>
#include <random>

#include "driver_pair.h"
#include "endpoint/counters.h"

namespace rrpc::driver::testing {
namespace {

Options limited(uint32_t max_concurrency, uint32_t max_queue) {
  Options options;
  options.max_concurrency = max_concurrency;
  options.max_queue = max_queue;
  return options;
}

int64_t refused() { return endpoint::counters().calls_refused.load(); }

class LimitsTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<TestServer> serve(uint32_t max_concurrency, uint32_t max_queue) {
    return std::make_unique<TestServer>(GetParam(), 3, limited(max_concurrency, max_queue));
  }
};

bool holds(TestServer& server, size_t running, size_t waiting) {
  return eventually([&] {
    return server.server().calls_running() == running + waiting && server.server().calls_waiting() == waiting;
  });
}

std::vector<endpoint::Buffer> one_buffer(size_t length_bytes) {
  std::vector<endpoint::Buffer> buffers;
  buffers.push_back(owning_buffer(pattern(length_bytes, 1)));
  return buffers;
}

TEST_P(LimitsTest, NoMoreRunAtATimeThanAllowed) {
  auto server = serve(2, kUnlimited);
  auto client = connect_to(server->address());
  std::vector<std::unique_ptr<TestCall>> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(std::make_unique<TestCall>(*client, "nap", "20"));
  for (auto& call : calls) EXPECT_TRUE(call->wait().ok());
  EXPECT_EQ(server->peak(), 2) << "of three workers";
}

TEST_P(LimitsTest, WhatFindsTheQueueFullIsRefusedAndDisturbsNobody) {
  auto server = serve(1, 2);
  auto client = connect_to(server->address());
  TestCall running(*client, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  TestCall first(*client, "echo", "1");
  TestCall second(*client, "echo", "2");
  ASSERT_TRUE(holds(*server, 1, 2));
  const int64_t before = refused();
  const int64_t reads_before = endpoint::counters().reads.load();
  auto other = connect_to(server->address());
  for (Client* caller : {client.get(), other.get()}) {
    TestCall too_many(*caller, "echo", "3", kNever, one_buffer(1 << 20));
    const Status status = too_many.wait();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("max_queue: 2 calls wait for a worker, as many as may (--max-queue 2)"),
              std::string::npos)
        << status.message();
  }
  EXPECT_EQ(refused(), before + 2);
  EXPECT_EQ(endpoint::counters().reads.load(), reads_before) << "their arguments were not even fetched";
  server->release();
  for (TestCall* call : {&running, &first, &second}) EXPECT_TRUE(call->wait().ok());
  EXPECT_EQ(first.text() + second.text(), "12");
  ASSERT_TRUE(holds(*server, 0, 0));
  TestCall again(*client, "echo", "4");
  EXPECT_TRUE(again.wait().ok());
}

TEST_P(LimitsTest, WithoutAQueueACallNeedsAFreeWorker) {
  auto server = serve(2, 0);
  auto client = connect_to(server->address());
  TestCall a(*client, "hold", "");
  TestCall b(*client, "hold", "");  // at once: both find a worker
  TestCall c(*client, "hold", "");
  EXPECT_EQ(c.wait().code(), StatusCode::kResourceExhausted);
  server->release();
  EXPECT_TRUE(a.wait().ok());
  EXPECT_TRUE(b.wait().ok());
}

TEST_P(LimitsTest, ACancelledCallLeavesTheQueueAtOnceWithItsMemory) {
  auto server = serve(1, 2);
  auto client = connect_to(server->address());
  TestCall running(*client, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  const int64_t pool_before = endpoint::counters().pool_bytes_used.load();
  TestCall first(*client, "echo", "1", kNever, one_buffer(4 << 20));
  TestCall second(*client, "echo", "2", kNever, one_buffer(4 << 20));
  ASSERT_TRUE(holds(*server, 1, 2));
  EXPECT_GE(endpoint::counters().pool_bytes_used.load(), pool_before + (8 << 20));
  client->cancel(first.ref(), cancelled("by the test"));
  EXPECT_TRUE(holds(*server, 1, 1));
  TestCall third(*client, "echo", "3");
  ASSERT_TRUE(holds(*server, 1, 2));
  client->cancel(second.ref(), cancelled("by the test"));
  client->cancel(third.ref(), cancelled("by the test"));
  EXPECT_TRUE(holds(*server, 1, 0));
  EXPECT_TRUE(eventually([&] { return endpoint::counters().pool_bytes_used.load() <= pool_before; }));
  EXPECT_EQ(server->served(), 0) << "all that before the worker was free";
  server->release();
  EXPECT_TRUE(running.wait().ok());
  EXPECT_EQ(server->served(), 1);
}

TEST_P(LimitsTest, CallsOfALostConnectionLeaveTheQueue) {
  auto server = serve(1, 2);
  auto staying = connect_to(server->address());
  auto leaving = connect_to(server->address());
  TestCall running(*staying, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  TestCall first(*leaving, "echo", "1");
  TestCall second(*leaving, "echo", "2");
  ASSERT_TRUE(holds(*server, 1, 2));
  leaving->close();
  EXPECT_TRUE(holds(*server, 1, 0));
  EXPECT_EQ(server->served(), 0);
  server->release();
  EXPECT_TRUE(running.wait().ok());
}

TEST_P(LimitsTest, NothingIsLostInAStorm) {
  auto server = serve(2, 4);
  const int64_t refused_before = refused();
  const int64_t pool_before = endpoint::counters().pool_bytes_used.load();
  std::atomic<int> answered{0};
  std::atomic<int> exhausted{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      auto client = connect_to(server->address());
      for (int i = 0; i < scaled(150); ++i) {
        if (random() % 20 == 0) client = connect_to(server->address());
        std::vector<std::unique_ptr<TestCall>> calls;
        for (unsigned k = 0; k < 1 + random() % 5; ++k) {
          const TimeNs deadline = random() % 3 == 0 ? deadline_after(now_ns(), kMillisecond) : kNever;
          auto buffers = random() % 4 == 0 ? one_buffer(100'000) : std::vector<endpoint::Buffer>();
          calls.push_back(std::make_unique<TestCall>(*client, "nap", "1", deadline, std::move(buffers)));
          if (random() % 4 == 0) client->cancel(calls.back()->ref(), cancelled("by the test"));
        }
        if (random() % 30 == 0) client->close();
        for (auto& call : calls) {
          const StatusCode code = call->wait(in_ms(20'000)).code();
          if (code == StatusCode::kOk) ++answered;
          if (code == StatusCode::kResourceExhausted) ++exhausted;
          const bool allowed = code == StatusCode::kOk || code == StatusCode::kResourceExhausted ||
                               code == StatusCode::kCancelled || code == StatusCode::kDeadlineExceeded ||
                               code == StatusCode::kUnavailable;
          EXPECT_TRUE(allowed) << (**call).status().to_string();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(holds(*server, 0, 0));
  EXPECT_GT(answered, 0);
  EXPECT_GT(exhausted, 0);
  EXPECT_LE(server->peak(), 2);
  EXPECT_GE(refused() - refused_before, exhausted) << "a caller that gave up doesn't see its refusal";
  EXPECT_TRUE(eventually([&] { return endpoint::counters().pool_bytes_used.load() <= pool_before; }));
}

INSTANTIATE_TEST_SUITE_P(All, LimitsTest, ::testing::Values("shm", "tcp"),
                         [](const auto& scheme) { return std::string(scheme.param); });

}  // namespace
}  // namespace rrpc::driver::testing
