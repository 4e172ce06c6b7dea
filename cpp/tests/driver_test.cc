// Clients and a server in one process: many threads, both transports, every way to poll.

#include <algorithm>
#include <deque>
#include <mutex>

#include "driver_pair.h"
#include "endpoint/counters.h"

namespace rrpc::driver::testing {
namespace {

struct Setting {
  std::string name;
  std::string transport;
  PollMode poll;
  TimeNs spin;
};

class DriverTest : public ::testing::TestWithParam<Setting> {
 protected:
  Options options() const {
    Options options;
    options.poll = GetParam().poll;
    options.spin = GetParam().spin;
    return options;
  }
  // No timer of the session wakes anybody: a wake-up that is lost hangs.
  Options quiet() const {
    Options quiet = options();
    quiet.session.keepalive_interval = kNever;
    return quiet;
  }
  std::unique_ptr<TestServer> serve(int workers = 1) {
    return std::make_unique<TestServer>(GetParam().transport, workers, options());
  }
  std::unique_ptr<Client> connect(const TestServer& server) { return connect_to(server.address(), options()); }
};

void call_many(Client& client, int count, const std::string& name) {
  for (int i = 0; i < count; ++i) {
    const std::string payload = name + std::to_string(i);
    TestCall call(client, "echo", payload);
    ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
    ASSERT_EQ(call.text(), payload);
  }
}

TEST_P(DriverTest, ThreadsShareAConnection) {
  auto server = serve(2);
  auto client = connect(*server);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] { call_many(*client, scaled(500), std::to_string(t) + ":"); });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DriverTest, ThreadsWithAConnectionEach) {
  auto server = serve(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto client = connect(*server);
      call_many(*client, scaled(500), std::to_string(t) + ":");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DriverTest, WithoutSharedReceivesEachConnectionHasItsRing) {
  if (GetParam().transport.starts_with("rxe")) GTEST_SKIP() << "Soft-RoCE has shared receive queues";
  Options with_shared = options();
  with_shared.shared_receive_slots = 16;
  TestServer server(GetParam().transport, 1, with_shared);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(connect_to(server.address(), options()));
    call_many(*clients.back(), 20, "x");
  }
}

TEST_P(DriverTest, PipelinedCallsEndInCallbacks) {
  auto server = serve(2);
  auto client = connect(*server);
  const int count = scaled(2000);
  std::atomic<int> ended{0};
  for (int i = 0; i < count; ++i) {
    TestCall call(*client, "echo", "x", i % 2 == 0 ? kNever : patiently_ms(30'000));
    ASSERT_TRUE(call.started().ok());
    if (!client->on_done(call.ref(), [&ended] { ++ended; })) ++ended;
  }
  // Nobody waits for any of them.
  EXPECT_TRUE(eventually([&] { return ended == count; }, 30'000)) << ended << " of " << count;
}

TEST_P(DriverTest, BuffersInBothDirections) {
  auto server = serve(2);
  auto client = connect(*server);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < scaled(12); ++i) {
        const uint64_t seed = static_cast<uint64_t>(t) * 1000 + static_cast<uint64_t>(i);
        const auto bytes = pattern(100'000 + static_cast<size_t>(i) * 300'000, seed);
        std::vector<endpoint::Buffer> buffers;
        buffers.push_back(owning_buffer(bytes));
        TestCall call(*client, "echo", "b", kNever, std::move(buffers));
        ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
        ASSERT_EQ((*call).blocks().size(), 1u);
        const endpoint::ReceivedBlock& block = (*call).blocks()[0];
        ASSERT_GE(block.size(), bytes.size());
        ASSERT_EQ(std::memcmp(block.data(), bytes.data(), bytes.size()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The server's connection sleeps while the handler runs: the WRITE that answers must be carried out all the same.
TEST_P(DriverTest, ResultsAreWrittenFromASleepingConnection) {
  TestServer server(GetParam().transport, 1, quiet());
  auto client = connect_to(server.address(), quiet());
  for (int i = 0; i < 3; ++i) {
    const auto bytes = pattern(500'000, static_cast<uint64_t>(i));
    std::vector<std::byte> landing(bytes.size());
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(owning_buffer(bytes));
    TestCall call(*client, "nap", "30", kNever, std::move(buffers),
                  endpoint::Buffer{landing.data(), landing.size(), 0, nullptr, {}});
    ASSERT_TRUE(call.wait().ok());
    ASSERT_EQ(landing, bytes);
  }
}

TEST_P(DriverTest, DeadlinesEndCallsThatSleep) {
  auto server = serve(2);
  auto client = connect(*server);
  for (int i = 0; i < 3; ++i) {
    const TimeNs begin = now_ns();
    TestCall call(*client, "hold", "", deadline_after(begin, 30 * kMillisecond));
    EXPECT_EQ(call.wait().code(), StatusCode::kDeadlineExceeded);
    EXPECT_GE(now_ns() - begin, 30 * kMillisecond);
  }
  server->release();
  call_many(*client, 10, "after");
}

TEST_P(DriverTest, DeadlinesEndCallsThatNobodyWaitsFor) {
  auto server = serve(2);
  auto client = connect(*server);
  sleep_ms(20);  // until the engine sleeps
  for (int i = 0; i < 3; ++i) {
    const TimeNs begin = now_ns();
    std::atomic<TimeNs> ended{0};
    TestCall call(*client, "hold", "", deadline_after(begin, 50 * kMillisecond));
    ASSERT_TRUE(client->on_done(call.ref(), [&ended] { ended = now_ns(); }));
    ASSERT_TRUE(eventually([&] { return ended != 0; }));
    EXPECT_GE(ended - begin, 50 * kMillisecond);
    EXPECT_EQ((*call).status().code(), StatusCode::kDeadlineExceeded);
  }
}

TEST_P(DriverTest, RepliesAfterTheServerHasSlept) {
  TestServer server(GetParam().transport, 1, quiet());
  auto client = connect_to(server.address(), quiet());
  for (int pause_ms : {0, 1, 2, 3, 4, 5, 8, 12, 30}) {
    sleep_ms(pause_ms);
    call_many(*client, 1, "x");
  }
}

TEST_P(DriverTest, CancelsRaceWithReplies) {
  auto server = serve(2);
  auto client = connect(*server);
  for (int i = 0; i < scaled(300); ++i) {
    TestCall call(*client, "echo", "c");
    std::thread canceller([&] {
      for (int spin = 0; spin < i % 50 * 20; ++spin) cpu_relax();
      client->cancel(call.ref(), cancelled("by the test"));
    });
    const Status status = call.wait();
    canceller.join();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.to_string();
  }
  call_many(*client, 10, "after");
}

TEST_P(DriverTest, CancelsRaceWithBuffers) {
  std::deque<std::vector<std::byte>> landings;  // open to the server until it has heard of the cancel
  auto server = serve(2);
  auto client = connect(*server);
  const auto exposed = endpoint::total(&endpoint::Counters::exposures_live);
  for (int i = 0; i < scaled(60); ++i) {
    const auto bytes = pattern(1'000'000, static_cast<uint64_t>(i));
    std::vector<std::byte>& landing = landings.emplace_back(bytes.size());
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(owning_buffer(bytes));
    TestCall call(*client, "echo", "c", kNever, std::move(buffers),
                  endpoint::Buffer{landing.data(), landing.size(), 0, nullptr, {}});
    std::thread canceller([&] {
      for (int spin = 0; spin < i % 20 * 500; ++spin) cpu_relax();
      client->cancel(call.ref(), cancelled("by the test"));
    });
    const Status status = call.wait();
    canceller.join();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.to_string();
    if (status.ok()) {
      EXPECT_EQ(landing, bytes);
    }
  }
  EXPECT_TRUE(eventually([&] { return endpoint::total(&endpoint::Counters::exposures_live) <= exposed; }));
  call_many(*client, 10, "after");
}

TEST_P(DriverTest, ClosingEndsEveryCall) {
  auto server = serve(2);
  for (int round = 0; round < scaled(8); ++round) {
    auto client = connect(*server);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        while (true) {
          TestCall call(*client, t % 2 == 0 ? "nap" : "echo", "20");
          const Status status = call.wait();
          if (status.ok()) continue;
          EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
          return;
        }
      });
    }
    sleep_ms(round * 5);
    client->close();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(DriverTest, StoppingTheServerEndsEveryCall) {
  for (int round = 0; round < scaled(4); ++round) {
    auto server = serve(2);
    auto client = connect(*server);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        while (true) {
          TestCall call(*client, t == 0 ? "nap" : "echo", "20");
          const Status status = call.wait();
          if (status.ok()) continue;
          EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
          return;
        }
      });
    }
    sleep_ms(10 + round * 7);
    server->server().stop();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(DriverTest, DrainingFinishesWhatRuns) {
  for (int round = 0; round < scaled(3); ++round) {
    auto server = serve(3);
    auto client = connect(*server);
    TestCall one(*client, "hold", "");
    TestCall other(*client, "hold", "");
    ASSERT_TRUE(eventually([&] { return server->server().calls_running() == 2; }));
    std::thread drainer([&] {
      const LeftOver left = server->server().drain(patiently_ms(20'000));
      EXPECT_EQ(left.calls + left.results, 0u);
    });
    // Others keep calling: each is answered or refused.
    while (true) {
      TestCall call(*client, "echo", "x");
      const Status status = call.wait();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      break;
    }
    server->release();
    EXPECT_TRUE(one.wait().ok()) << (*one).status().to_string();
    EXPECT_TRUE(other.wait().ok()) << (*other).status().to_string();
    drainer.join();
  }
}

TEST_P(DriverTest, DrainGivesUpAtItsDeadline) {
  auto server = serve(1);
  auto client = connect(*server);
  TestCall held(*client, "hold", "");
  ASSERT_TRUE(eventually([&] { return server->server().calls_running() == 1; }));
  EXPECT_EQ(server->server().drain(in_ms(50)).calls, 1u);
  server->server().stop();
  EXPECT_EQ(held.wait().code(), StatusCode::kUnavailable);
}

TEST_P(DriverTest, AClientThatIsSentAwayKeepsItsCallsUnderWay) {
  auto server = serve(1);
  auto oldest = connect(*server);
  auto other = connect(*server);
  TestCall held(*oldest, "hold", "");
  ASSERT_TRUE(eventually([&] { return server->server().calls_running() == 1; }));
  EXPECT_EQ(server->server().send_away(1, "connect again"), 1u);
  ASSERT_TRUE(eventually([&] { return !oldest->usable(); }));
  EXPECT_TRUE(other->usable());
  TestCall refused(*oldest, "echo", "x");
  EXPECT_EQ(refused.wait().code(), StatusCode::kUnavailable);
  EXPECT_EQ(server->server().send_away(9, "connect again"), 1u);  // the other one
  server->release();
  EXPECT_TRUE(held.wait().ok()) << (*held).status().to_string();
}

TEST_P(DriverTest, HandlersAtWorkHoldUpNobodyElse) {
  auto server = serve(3);
  auto slow = connect(*server);
  auto fast = connect(*server);
  TestCall one(*slow, "hold", "");
  TestCall other(*slow, "hold", "");
  ASSERT_TRUE(eventually([&] { return server->server().calls_running() == 2; }));
  for (int i = 0; i < 5; ++i) {
    call_many(*fast, 10, "x");
    sleep_ms(5);
  }
  server->release();
  EXPECT_TRUE(one.wait().ok());
  EXPECT_TRUE(other.wait().ok());
}

// Two callers asleep on one connection: the first reply wakes its own caller, who hands the watch to the other.
TEST_P(DriverTest, LeadersHandOver) {
  TestServer server(GetParam().transport, 3, quiet());
  auto client = connect_to(server.address(), quiet());
  for (int round = 0; round < scaled(4); ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const int nap_ms = 20 + (round % 2 == 0 ? t : 2 - t) * 30;
        TestCall call(*client, "nap", std::to_string(nap_ms));
        ASSERT_TRUE(call.wait().ok());
      });
      sleep_ms(2);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(DriverTest, ChurnLeavesNothingBehind) {
  auto server = serve(2);
  connect(*server)->close();
  ASSERT_TRUE(eventually([&] { return server->server().connection_count() == 0; }));
  const size_t descriptors = open_descriptors();
  const auto connections = endpoint::total(&endpoint::Counters::connections_open);
  const int count = scaled(200);
  for (int i = 0; i < count; ++i) {
    auto client = connect(*server);
    ASSERT_NE(client, nullptr);
    if (i % 3 != 0) call_many(*client, 1, "x");
    if (i % 2 == 0) client->close();
  }
  EXPECT_TRUE(eventually([&] { return server->server().connection_count() == 0; }));
  EXPECT_TRUE(eventually([&] { return endpoint::total(&endpoint::Counters::connections_open) <= connections; }));
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors + 2; })) << open_descriptors() - descriptors;
}

TEST_P(DriverTest, IdleConnectionsCostNothing) {
  if (GetParam().poll == PollMode::kBusy) GTEST_SKIP() << "busy polling is meant to be busy";
  auto server = serve(2);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < scaled(50); ++i) {
    clients.push_back(connect(*server));
    call_many(*clients.back(), 1, "x");
  }
  sleep_ms(100);
  const TimeNs cpu_before = cpu_ns();
  sleep_ms(500);
  EXPECT_LT(cpu_ns() - cpu_before, patience(25 * kMillisecond));
  for (auto& client : clients) call_many(*client, 1, "y");
}

std::vector<Setting> settings() {
  std::vector<Setting> settings;
  const auto add = [&](const std::string& transport, PollMode poll, TimeNs spin, const char* suffix = "") {
    settings.push_back({test_name(transport, poll) + suffix, transport, poll, spin});
  };
  for (const std::string& transport : transports_under_test()) {
    add(transport, PollMode::kAdaptive, 200 * kMicrosecond);
    add(transport, PollMode::kEvent, 0);
    if (!over_verbs(transport)) add(transport, PollMode::kBusy, 0);
    if (transport == "shm") add(transport, PollMode::kAdaptive, 0, "_no_spin");
  }
  return settings;
}
INSTANTIATE_TEST_SUITE_P(All, DriverTest, ::testing::ValuesIn(settings()),
                         [](const auto& setting) { return setting.param.name; });

// More than the socket takes at once, and nothing that comes back meanwhile: what is left is written by whoever sleeps
// on the connection, which must learn that there is something to write.
TEST(DriverWaitHandles, TellASleeperThatSomethingIsLeftToWrite) {
  constexpr int kCalls = 20;
  Options options;
  options.poll = PollMode::kEvent;
  options.session.geometry = {64, 1 << 20, 16};
  options.session.keepalive_interval = 60 * kSecond;
  TestServer server("tcp", 1, options);
  auto client = connect_to(server.address(), options);
  call_many(*client, 1, "x");
  const std::string payload(900'000, 'x');
  const int64_t before = endpoint::total(&endpoint::Counters::messages_received);
  std::deque<TestCall> calls;
  for (int i = 0; i < kCalls; ++i) calls.emplace_back(*client, "hold", payload);
  EXPECT_TRUE(
      eventually([&] { return endpoint::total(&endpoint::Counters::messages_received) >= before + kCalls; }, 10'000))
      << endpoint::total(&endpoint::Counters::messages_received) - before << " of " << kCalls;
  server.release();
  for (TestCall& call : calls) EXPECT_TRUE(call.wait().ok());
}

TEST(DriverHello, SaysMoreWhereASlotHasRoom) {
  TestServer server("tcp");
  const std::string large(400, 'x');
  server.server().add_to_hello({{"large", large}, {"small", "1"}});
  Options small_slots;
  small_slots.session.geometry.slot_bytes = 512;
  const rpc::HelloFields cut = connect_to(server.address(), small_slots)->peer_hello();
  EXPECT_EQ(cut.at("small"), "1");
  EXPECT_FALSE(cut.contains("large"));
  EXPECT_TRUE(cut.contains("instance"));
  EXPECT_EQ(connect_to(server.address())->peer_hello().at("large"), large);
}

TEST(DriverUpgradeTest, MovesToSharedMemoryOnOneHost) {
  TestServer server("rrpc");
  auto client = connect_to(server.address());
  EXPECT_EQ(client->info()["transport"], "shm");
  call_many(*client, 10, "x");
}

}  // namespace
}  // namespace rrpc::driver::testing
