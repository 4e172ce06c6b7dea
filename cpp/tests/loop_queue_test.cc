// The queue of an event loop: calls that end into it, polled for or told of by its descriptor.

#include <poll.h>

#include <mutex>
#include <set>

#include "driver/loop_queue.h"
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

using Ended = std::vector<LoopCall*>;

struct TestLoopCall final : LoopCall {
  using LoopCall::LoopCall;
  void deliver(void* to) override { static_cast<Ended*>(to)->push_back(this); }
};

// An event loop in as few words as can be: it polls as long as it is asked to, then sleeps on the descriptor.
class TestLoop {
 public:
  TestLoop() : queue_(std::make_shared<LoopQueue>()) {}
  ~TestLoop() { queue_->close(); }

  std::shared_ptr<TestLoopCall> start(Client& client, std::string_view method, std::string_view payload,
                                      TimeNs deadline = kNever) {
    auto call = std::make_shared<TestLoopCall>(queue_);
    rpc::CallRequest request;
    request.method = method;
    request.payload = as_bytes(payload);
    request.deadline = deadline;
    const Status started = client.start_in_loop(call, std::move(request));
    EXPECT_TRUE(started.ok()) << started.to_string();
    return call;
  }

  // Until so many calls more have ended.
  bool run(size_t count, TimeNs deadline = in_ms(30'000)) {
    const size_t goal = ended_.size() + count;
    while (ended_.size() < goal && now_ns() < deadline) {
      std::vector<LoopItemRef> items;
      ++polls_;
      const bool awake = queue_->poll(items);
      for (const LoopItemRef& item : items) item->deliver(&ended_);
      held_.insert(held_.end(), items.begin(), items.end());
      if (!awake && ended_.size() < goal) sleep_until(deadline);
    }
    return ended_.size() >= goal;
  }
  void sleep_until(TimeNs deadline) {
    ++sleeps_;
    pollfd fd{queue_->fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, static_cast<int>((deadline - now_ns()) / kMillisecond)), 1) << "nobody told the loop";
  }

  LoopQueue& queue() { return *queue_; }
  const Ended& ended() const { return ended_; }
  int sleeps() const { return sleeps_; }
  int polls() const { return polls_; }

 private:
  std::shared_ptr<LoopQueue> queue_;
  Ended ended_;
  std::vector<LoopItemRef> held_;
  int sleeps_ = 0;
  int polls_ = 0;
};

class LoopQueueTest : public ::testing::TestWithParam<const char*> {
 protected:
  static Options options(PollMode poll) {
    Options options;
    options.poll = poll;
    return options;
  }
};

TEST_P(LoopQueueTest, CallsEndIntoTheQueue) {
  TestServer server(GetParam(), 2);
  auto client = connect_to(server.address());
  TestLoop loop;
  const auto count = static_cast<size_t>(scaled(2000));
  constexpr size_t kWindow = 64;
  for (size_t started = 0; started < count; started += kWindow) {
    for (size_t i = 0; i < kWindow; ++i) loop.start(*client, "echo", std::to_string(started + i));
    ASSERT_TRUE(loop.run(kWindow));
  }
  std::set<std::string> seen;
  for (LoopCall* call : loop.ended()) {
    ASSERT_TRUE(call->status().ok()) << call->status().to_string();
    seen.insert(std::string(as_text(call->payload())));
  }
  EXPECT_EQ(seen.size(), loop.ended().size());
}

TEST_P(LoopQueueTest, ASleepingLoopIsToldOnce) {
  TestServer server(GetParam(), 2);
  auto client = connect_to(server.address(), options(PollMode::kEvent));
  TestLoop loop;
  for (int i = 0; i < 5; ++i) {
    loop.start(*client, "nap", "20");
    ASSERT_TRUE(loop.run(1));
    EXPECT_TRUE(loop.ended().back()->status().ok());
  }
  EXPECT_GE(loop.sleeps(), 5);
  std::vector<LoopItemRef> items;
  EXPECT_FALSE(loop.queue().poll(items));
  pollfd fd{loop.queue().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 0) << "told of nothing";
}

TEST_P(LoopQueueTest, ABusyLoopNeverSleepsWhileSomethingIsAwaited) {
  TestServer server(GetParam());
  auto client = connect_to(server.address(), options(PollMode::kBusy));
  TestLoop loop;
  loop.start(*client, "nap", "30");
  ASSERT_TRUE(loop.run(1));
  EXPECT_EQ(loop.sleeps(), 0);
  std::vector<LoopItemRef> items;
  while (loop.queue().poll(items)) {  // and sleeps as soon as nothing is
  }
  EXPECT_TRUE(items.empty());
}

TEST_P(LoopQueueTest, LongCallsAreLeftToTheEngine) {
  TestServer server(GetParam());
  auto client = connect_to(server.address());
  TestLoop loop;
  const TimeNs before = cpu_ns();
  loop.start(*client, "nap", "400");
  ASSERT_TRUE(loop.run(1));
  EXPECT_GE(loop.sleeps(), 1);
  EXPECT_LT(cpu_ns() - before, 200 * kMillisecond);
}

TEST_P(LoopQueueTest, CancelsDeadlinesAndTheEndAreToldOf) {
  auto server = std::make_unique<TestServer>(GetParam());
  auto client = connect_to(server->address());
  TestLoop loop;
  const auto cancelled_call = loop.start(*client, "hold", "a");
  EXPECT_TRUE(client->cancel(cancelled_call, cancelled("the test doesn't want it")));
  ASSERT_TRUE(loop.run(1));
  EXPECT_EQ(cancelled_call->status().code(), StatusCode::kCancelled);

  const auto late = loop.start(*client, "hold", "b", in_ms(20));
  ASSERT_TRUE(loop.run(1));
  EXPECT_EQ(late->status().code(), StatusCode::kDeadlineExceeded);

  const auto lost = loop.start(*client, "hold", "c");
  server->server().stop();
  ASSERT_TRUE(loop.run(1));
  EXPECT_EQ(lost->status().code(), StatusCode::kUnavailable);
}

TEST_P(LoopQueueTest, LoopsAndThreadsShareAConnection) {
  TestServer server(GetParam(), 2);
  auto client = connect_to(server.address());
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      TestLoop loop;
      for (int i = 0; i < scaled(300); ++i) {
        loop.start(*client, "echo", "loop");
        ASSERT_TRUE(loop.run(1));
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < scaled(300); ++i) {
        TestCall call(*client, "echo", "blocking");
        ASSERT_TRUE(call.wait().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(LoopQueueTest, AQueueThatIsGoneLeavesNothingBehind) {
  TestServer server(GetParam());
  auto client = connect_to(server.address());
  std::weak_ptr<TestLoopCall> left;
  {
    TestLoop loop;
    left = loop.start(*client, "hold", "x");
  }
  server.release();
  EXPECT_TRUE(eventually([&] { return left.expired(); }));
}

INSTANTIATE_TEST_SUITE_P(Transports, LoopQueueTest, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace rrpc::driver::testing
