// A process with many connections to one server: each call finds its poller, awake or asleep.
#include <deque>

#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

constexpr int kClients = 40;

struct ManyWay : Way {
  uint32_t pollers = 1;
};
std::vector<ManyWay> many_ways() {
  std::vector<ManyWay> all;
  for (const Way& way : ways({"shm", "tcp"}, {PollMode::kAdaptive, PollMode::kEvent, PollMode::kBusy}))
    for (const uint32_t pollers : {1u, 3u}) all.push_back({way, pollers});
  return all;
}

class DriverMany : public ::testing::TestWithParam<ManyWay> {
 protected:
  // No timer of the session wakes anybody: a wake-up that is lost hangs.
  static Options quiet() {
    Options made;
    made.poll = GetParam().poll;
    made.spin = 50 * kMicrosecond;
    made.session.keepalive_interval = kNever;
    made.pollers = GetParam().pollers;
    return made;
  }
  void connect(int count) {
    for (int i = 0; i < count; ++i) clients_.push_back(connect_to(server_.address(), quiet()));
  }
  void call(size_t client, const std::string& payload) {
    TestCall call(*clients_[client], "echo", payload);
    ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
    ASSERT_EQ(call.text(), payload);
  }

  TestServer server_{GetParam().transport, 2, quiet()};
  std::deque<std::unique_ptr<Client>> clients_;
};

TEST_P(DriverMany, CallInTurn) {
  connect(kClients);
  for (int round = 0; round < scaled(50); ++round) {
    for (size_t i = 0; i < clients_.size(); ++i) call(i, std::to_string(round) + ":" + std::to_string(i));
  }
}

TEST_P(DriverMany, CallAtOnce) {
  connect(kClients);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < scaled(50); ++round) {
        for (size_t i = t; i < clients_.size(); i += 4) call(i, std::to_string(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What tells the poller of a call has to be found, or to wake it, each time.
TEST_P(DriverMany, CallAServerThatHasGoneToSleep) {
  connect(20);
  const TimeNs before = now_ns();
  for (int round = 0; round < 60; ++round) {
    call(static_cast<size_t>(10 + round % 10), "x");
    sleep_ms(1);  // longer than it spins
  }
  EXPECT_LT(now_ns() - before, patience(5 * kSecond)) << "woken by its nap, not by the calls";
}

// More than a poll takes in at a time, so that something is left unread when others have their turn.
TEST_P(DriverMany, MoveArraysAtOnce) {
  connect(8);
  const auto bytes = pattern(5 << 20, 3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < scaled(10); ++i) {
        TestCall call(*clients_[t], "echo", "array", kNever, {owning_buffer(bytes)});
        ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
        ASSERT_EQ((*call).blocks().size(), 1u);
        ASSERT_EQ(std::memcmp((*call).blocks()[0].data(), bytes.data(), bytes.size()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Nobody waits: the client's own thread has to be woken for each answer, and sleeps between them.
TEST_P(DriverMany, CallbacksComeToClientsThatRest) {
  connect(12);
  const auto ended = std::make_shared<std::atomic<int>>(0);
  for (int round = 1; round <= 3; ++round) {
    for (const auto& client : clients_) {
      TestCall call(*client, "nap", "5");
      ASSERT_TRUE(call.started().ok());
      if (!client->on_done(call.ref(), [ended] { ++*ended; })) ++*ended;
    }
    const int wanted = round * static_cast<int>(clients_.size());
    ASSERT_TRUE(eventually([&] { return *ended == wanted; }, 10'000)) << *ended << " of " << wanted;
  }
}

TEST_P(DriverMany, ConnectAndGoWhileOthersCall) {
  connect(kClients);
  for (int round = 0; round < scaled(100); ++round) {
    clients_.pop_front();
    connect(1);
    call(clients_.size() - 1, "new");
    call(static_cast<size_t>(round) % clients_.size(), "old");
  }
}

INSTANTIATE_TEST_SUITE_P(All, DriverMany, ::testing::ValuesIn(many_ways()), [](const auto& tested) {
  return test_name(tested.param.transport, tested.param.poll) + (tested.param.pollers > 1 ? "_pollers" : "");
});

}  // namespace
}  // namespace rrpc::driver::testing
