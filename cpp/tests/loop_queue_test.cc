// The queue of an event loop: calls that end into it, polled for or told of by its descriptor.

#include <poll.h>

#include <atomic>
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
  while (loop.queue().poll(items)) {
  }
  EXPECT_TRUE(items.empty());
  pollfd fd{loop.queue().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 0) << "told of nothing";
}

TEST(LoopQueue, OneThatWasNeverPolledTellsToo) {
  LoopQueue queue;
  queue.push(std::make_shared<TestLoopCall>(nullptr));
  pollfd fd{queue.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
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

struct News final : LoopItem {
  void deliver(void* to) override { ++*static_cast<int*>(to); }
};

// Answers "echo" in a loop, and holds "hold" there; all else goes to a worker.
class LoopServer {
 public:
  explicit LoopServer(const std::string& scheme, uint32_t max_concurrency = 100, const Options& options = {})
      : queue_(std::make_shared<LoopQueue>()), server_(options) {
    server_.serve_in_loop(queue_, std::make_shared<News>(), {"echo", "hold"}, max_concurrency, false);
    static std::atomic<int> count{0};
    const std::string name = "loop-test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
    address_ = *server_.listen(scheme + "://" + (scheme == "shm" ? name : "127.0.0.1:0"));
    loop_ = std::thread([this] { run(); });
    worker_ = std::thread([this] { work(); });
  }
  ~LoopServer() {
    server_.stop();
    ended_ = true;
    queue_->push(std::make_shared<News>());
    loop_.join();
    worker_.join();
    queue_->close();
  }
  const std::string& address() const { return address_; }
  int told() const { return told_; }
  size_t held() const { return held_; }
  void release() {
    released_ = true;
    queue_->push(std::make_shared<News>());
  }

 private:
  void run() {
    while (!ended_) {
      std::vector<LoopItemRef> items;
      const bool awake = queue_->poll(items);
      int news = 0;
      for (const LoopItemRef& item : items) item->deliver(&news);
      told_ += news;
      if (news > 0) {
        for (Work& work : server_.next_in_loop()) take(std::move(work));
        held_ = waiting_.size();
      }
      if (released_) {
        for (const Work& work : std::exchange(waiting_, {})) answer(work);
      }
      if (awake) continue;
      pollfd fd{queue_->fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&fd, 1, 30'000), 1) << "nobody told the loop";
    }
  }
  void take(Work work) {
    if (work.call->method() == "hold" && !released_)
      waiting_.push_back(std::move(work));
    else
      answer(work);
  }
  void answer(const Work& work) {
    rpc::Reply reply;
    const std::string payload(as_text(work.call->payload()));
    reply.payload = as_bytes(payload);
    for (const endpoint::ReceivedBlock& block : work.call->blocks())
      reply.buffers.push_back(owning_buffer({block.data(), block.data() + block.size()}));
    (void)server_.reply(work.handle, std::move(reply));
  }
  void work() {
    Work work;
    while (true) {
      const NextResult next = server_.next(work, kNever, kUninterrupted);
      if (next == NextResult::kEnded) return;
      if (next == NextResult::kWork) answer(work);
    }
  }

  std::shared_ptr<LoopQueue> queue_;
  Server server_;
  std::string address_;
  std::atomic<int> told_{0};
  std::atomic<size_t> held_{0};
  std::atomic<bool> released_{false};
  std::atomic<bool> ended_{false};
  std::vector<Work> waiting_;
  std::thread loop_;
  std::thread worker_;
};

TEST_P(LoopQueueTest, ALoopAnswersAndSoDoWorkersBesideIt) {
  LoopServer server(GetParam());
  auto client = connect_to(server.address());
  for (int i = 0; i < scaled(300); ++i) {
    TestCall in_loop(*client, "echo", std::to_string(i));
    ASSERT_TRUE(in_loop.wait().ok());
    ASSERT_EQ(in_loop.text(), std::to_string(i));
    if (i % 10 != 0) continue;
    TestCall by_worker(*client, "other", std::to_string(i));
    ASSERT_TRUE(by_worker.wait().ok());
  }
  EXPECT_GE(server.told(), scaled(300) / 2);
}

TEST_P(LoopQueueTest, LargeArgumentsReachALoopThatSleeps) {
  Options event;
  event.poll = PollMode::kEvent;
  LoopServer server(GetParam(), 100, event);
  auto client = connect_to(server.address());
  const auto sent = pattern(3'000'000, 1);
  for (int i = 0; i < 3; ++i) {
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(owning_buffer(sent));
    TestCall call(*client, "echo", "x", kNever, std::move(buffers));
    ASSERT_TRUE(call.wait().ok());
    ASSERT_EQ(std::memcmp((*call).blocks().at(0).data(), sent.data(), sent.size()), 0);
  }
}

TEST_P(LoopQueueTest, CallsWaitForTheirPlaceInALoop) {
  LoopServer server(GetParam(), 2);
  auto client = connect_to(server.address());
  std::vector<std::unique_ptr<TestCall>> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(std::make_unique<TestCall>(*client, "hold", std::to_string(i)));
  EXPECT_TRUE(eventually([&] { return server.held() == 2; }));
  TestCall other(*client, "other", "");
  ASSERT_TRUE(other.wait().ok());  // which waits for no place there
  EXPECT_EQ(server.held(), 2U);
  server.release();
  for (auto& call : calls) ASSERT_TRUE(call->wait().ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, LoopQueueTest, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace rrpc::driver::testing
