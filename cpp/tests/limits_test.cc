// How many calls run and wait on a server, and what ends one that waits.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "base/unique_fd.h"
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

int64_t refused() { return endpoint::total(&endpoint::Counters::calls_refused); }

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

constexpr char kFull[] = "max_queue: 2 calls wait for a worker, as many as may (--max-queue 2)";

TEST_P(LimitsTest, AFullQueueRefusesTheNewestCallOfTheClientThatHasMost) {
  auto server = serve(1, 2);
  auto greedy = connect_to(server->address());
  auto other = connect_to(server->address());
  auto third = connect_to(server->address());
  TestCall running(*greedy, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  TestCall first(*greedy, "echo", "1");
  TestCall second(*greedy, "echo", "2", kNever, one_buffer(1 << 20));
  ASSERT_TRUE(holds(*server, 1, 2));
  const int64_t before = refused();
  TestCall theirs(*other, "echo", "3", kNever, one_buffer(1 << 20));
  EXPECT_EQ(second.wait().code(), StatusCode::kResourceExhausted);
  EXPECT_NE((*second).status().message().find(kFull), std::string::npos) << (*second).status().message();
  ASSERT_TRUE(holds(*server, 1, 2));
  for (Client* caller : {greedy.get(), other.get(), third.get()}) {
    TestCall too_many(*caller, "echo", "4");
    EXPECT_EQ(too_many.wait().code(), StatusCode::kResourceExhausted)
        << "each has one waiting, or would take another's";
  }
  EXPECT_EQ(refused(), before + 4);
  server->release();
  for (TestCall* call : {&running, &first, &theirs}) EXPECT_TRUE(call->wait().ok());
  EXPECT_EQ(first.text() + theirs.text(), "13");
}

TEST_P(LimitsTest, ClientsTakeTurns) {
  auto server = serve(1, kUnlimited);
  auto greedy = connect_to(server->address());
  auto other = connect_to(server->address());
  TestCall running(*greedy, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  std::vector<std::unique_ptr<TestCall>> naps;
  for (int i = 0; i < 20; ++i) naps.push_back(std::make_unique<TestCall>(*greedy, "nap", "20"));
  ASSERT_TRUE(holds(*server, 1, 20));
  TestCall theirs(*other, "echo", "1");
  ASSERT_TRUE(holds(*server, 1, 21));
  server->release();
  EXPECT_TRUE(theirs.wait().ok());
  EXPECT_LE(server->served(), 5) << "not after all that came before it";
  for (auto& nap : naps) EXPECT_TRUE(nap->wait().ok());
}

TEST_P(LimitsTest, AClientTooManyIsToldWhy) {
  Options options;
  options.connections_max = 2;
  TestServer server(GetParam(), 1, options);
  auto first = connect_to(server.address());
  auto second = connect_to(server.address());
  for (int i = 0; i < 3; ++i) {
    const auto third = Client::connect(server.address(), Options(), in_ms(20'000));
    ASSERT_EQ(third.status().code(), StatusCode::kResourceExhausted) << third.status().to_string();
    EXPECT_NE(third.status().message().find(
                  "connections_max: the server has 2 clients, as many as may connect (--connections-max 2)"),
              std::string::npos)
        << third.status().message();
  }
  TestCall call(*first, "echo", "1");
  EXPECT_TRUE(call.wait().ok());
  second->close();
  EXPECT_TRUE(eventually([&] { return Client::connect(server.address(), Options(), in_ms(20'000)).ok(); }));
}

// A client that dials and says no more than its first byte.
UniqueFd dial_and_wait(const std::string& address, size_t first_bytes = 1) {
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << std::strerror(errno);
  const uint8_t first = 0xA7;
  EXPECT_EQ(::send(socket.get(), &first, first_bytes, MSG_NOSIGNAL), static_cast<ssize_t>(first_bytes));
  return socket;
}

bool is_closed(const UniqueFd& socket) {
  std::byte byte{};
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

TEST(Handshakes, TheOldestMakesPlaceForTheNext) {
  Options options;
  options.handshakes_max = 4;
  TestServer server("tcp", 1, options);
  auto client = connect_to(server.address());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(dial_and_wait(server.address()));
  EXPECT_TRUE(eventually([&] { return std::ranges::count_if(silent, is_closed) == 36; }, 30'000));
  for (size_t i = 0; i < silent.size(); ++i) EXPECT_EQ(is_closed(silent[i]), i < 36) << i;
  EXPECT_TRUE(eventually([&] { return server.server().connection_count() == 5; }));
  auto late = connect_to(server.address());
  for (Client* caller : {client.get(), late.get()}) {
    TestCall call(*caller, "echo", "1");
    EXPECT_TRUE(call.wait().ok());
  }
}

TEST(Handshakes, ClientsThatSayNothingAreNoConnections) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{256, before.rlim_max};  // 32 silent ones
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  {
    TestServer server("tcp", 1);
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 80; ++i) silent.push_back(dial_and_wait(server.address(), 0));
    EXPECT_TRUE(eventually([&] { return std::ranges::count_if(silent, is_closed) == 48; }, 30'000));
    EXPECT_EQ(server.server().connection_count(), 0u);
    auto client = connect_to(server.address());
    TestCall call(*client, "echo", "1");
    EXPECT_TRUE(call.wait().ok());
    for (size_t i = 0; i < silent.size(); ++i) EXPECT_EQ(is_closed(silent[i]), i < 49) << i;
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // UndefinedBehaviorSanitizer needs descriptors to look at an object's type
TEST(Handshakes, WithoutDescriptorsNothingEndsButTheCall) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> taken;
  const rlimit low{256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.emplace_back(fd);
  {
    Server server(Options{});
    const auto bound = server.listen("tcp://127.0.0.1:0");
    EXPECT_EQ(bound.status().code(), StatusCode::kResourceExhausted) << bound.status().to_string();
    EXPECT_NE(bound.status().message().find("ulimit -n"), std::string::npos) << bound.status().message();
    taken.clear();
    EXPECT_TRUE(server.listen("tcp://127.0.0.1:0").ok()) << "once there are some";
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}
#endif

TEST_P(LimitsTest, WhatFindsTheQueueFullIsRefusedAndDisturbsNobody) {
  auto server = serve(1, 2);
  auto client = connect_to(server->address());
  TestCall running(*client, "hold", "");
  ASSERT_TRUE(holds(*server, 1, 0));
  TestCall first(*client, "echo", "1");
  TestCall second(*client, "echo", "2");
  ASSERT_TRUE(holds(*server, 1, 2));
  const int64_t before = refused();
  const int64_t reads_before = endpoint::total(&endpoint::Counters::reads);
  for (int i = 0; i < 2; ++i) {
    TestCall too_many(*client, "echo", "3", kNever, one_buffer(1 << 20));
    const Status status = too_many.wait();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find(kFull), std::string::npos) << status.message();
  }
  EXPECT_EQ(refused(), before + 2);
  EXPECT_EQ(endpoint::total(&endpoint::Counters::reads), reads_before) << "their arguments were not even fetched";
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
  const int64_t pool_before = endpoint::total(&endpoint::Counters::pool_bytes_used);
  TestCall first(*client, "echo", "1", kNever, one_buffer(4 << 20));
  TestCall second(*client, "echo", "2", kNever, one_buffer(4 << 20));
  ASSERT_TRUE(holds(*server, 1, 2));
  EXPECT_GE(endpoint::total(&endpoint::Counters::pool_bytes_used), pool_before + (8 << 20));
  client->cancel(first.ref(), cancelled("by the test"));
  EXPECT_TRUE(holds(*server, 1, 1));
  TestCall third(*client, "echo", "3");
  ASSERT_TRUE(holds(*server, 1, 2));
  client->cancel(second.ref(), cancelled("by the test"));
  client->cancel(third.ref(), cancelled("by the test"));
  EXPECT_TRUE(holds(*server, 1, 0));
  EXPECT_TRUE(eventually([&] { return endpoint::total(&endpoint::Counters::pool_bytes_used) <= pool_before; }));
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
  const int64_t pool_before = endpoint::total(&endpoint::Counters::pool_bytes_used);
  auto first = connect_to(server->address());
  std::vector<std::unique_ptr<TestCall>> full;  // so that the storm begins with refusals, on any machine
  for (const char* method : {"hold", "hold", "nap", "nap", "nap", "nap"}) {
    full.push_back(std::make_unique<TestCall>(*first, method, "1"));
  }
  ASSERT_TRUE(holds(*server, 2, 4));
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
  EXPECT_TRUE(eventually([&] { return refused() > refused_before; }));
  server->release();
  for (std::thread& thread : threads) thread.join();
  for (auto& call : full) {  // those that waited make room for calls of clients that have fewer
    const StatusCode code = call->wait().code();
    if (code == StatusCode::kResourceExhausted) ++exhausted;
    EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kResourceExhausted) << (**call).status().to_string();
  }
  EXPECT_TRUE(holds(*server, 0, 0));
  EXPECT_GT(answered, 0);
  EXPECT_GT(exhausted, 0);
  EXPECT_LE(server->peak(), 2);
  EXPECT_GE(refused() - refused_before, exhausted) << "a caller that gave up doesn't see its refusal";
  EXPECT_TRUE(eventually([&] { return endpoint::total(&endpoint::Counters::pool_bytes_used) <= pool_before; }));
}

INSTANTIATE_TEST_SUITE_P(All, LimitsTest, ::testing::Values("shm", "tcp"),
                         [](const auto& scheme) { return std::string(scheme.param); });

}  // namespace
}  // namespace rrpc::driver::testing
