// A connection that several callers of one process poll and sleep on, step by step: what each leaves to the engine.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "base/helper_thread.h"
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

// No timer of a session wakes anybody: a wake-up that is lost is lost for good.
Options quiet() {
  Options options;
  options.session.keepalive_interval = kNever;
  return options;
}

// Of a connection: calls `on_destroyed` where that is destroyed.
class WatchedCompletionQueue final : public provider::CompletionQueue {
 public:
  WatchedCompletionQueue(std::unique_ptr<provider::CompletionQueue> own, std::function<void()> on_destroyed, bool bits)
      : own_(std::move(own)), on_destroyed_(std::move(on_destroyed)), bits_(bits) {}
  ~WatchedCompletionQueue() override {
    if (on_destroyed_) on_destroyed_();
  }
  size_t poll(std::span<provider::Completion> out) override { return own_->poll(out); }
  void arm() override { own_->arm(); }
  void append_wait_handles(std::vector<provider::WaitHandle>& out) const override { own_->append_wait_handles(out); }
  bool handles_tell_all() const override { return own_->handles_tell_all(); }
  bool polls_cheaply() const override { return own_->polls_cheaply(); }
  provider::NextMessage next_message() const override { return bits_ ? own_->next_message() : provider::NextMessage(); }
  bool moved_bytes() const override { return own_->moved_bytes(); }
  bool disarm() override { return own_->disarm(); }
  void look_at_wait_handles() override { own_->look_at_wait_handles(); }
  bool lingering() const override { return own_->lingering(); }

 private:
  std::unique_ptr<provider::CompletionQueue> own_;
  std::function<void()> on_destroyed_;
  const bool bits_;
};

// Clients' connections with an engine of their own, whose thread the test can hold up; and their server, whose only
// worker is the test.
class SharedConnection : public ::testing::Test {
 protected:
  explicit SharedConnection(Engine::Hooks hooks = {}, bool bits = true)
      : bits_(bits),
        server_(quiet()),
        address_(server_.listen(new_address("shm")).value()),
        engine_(std::make_shared<Engine>(std::move(hooks))) {
    EXPECT_TRUE(engine_->start().ok());
    shared_ = dial();
    other_ = dial();
  }
  ~SharedConnection() override {
    let_engine_go_on();
    engine_->stop();
    for (const ConnectionRef& connection : {shared_, other_}) {
      std::lock_guard lock(connection->mutex);
      connection->session().close(unavailable("the test is over"));
    }
    engine_->abandon();
    server_.stop();
  }

  ConnectionRef dial(std::function<void()> on_destroyed = {}) {
    auto connection = begin_to_dial(std::move(on_destroyed));
    EXPECT_TRUE(eventually([&] { return connection->ready.load(); }));
    return connection;
  }
  ConnectionRef begin_to_dial(std::function<void()> on_destroyed = {}) {
    DeviceEntry& device = *find_device("shm").value();
    const Options options = quiet();
    const auto config = endpoint::queue_pair_config(options.session.geometry);
    auto cq = device.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto qp = device.device->open(*cq, parse_address(address_).value().rest, config, kNever).value();
    auto watched = std::make_unique<WatchedCompletionQueue>(std::move(cq), std::move(on_destroyed), bits_);
    auto connection = Connection::make(rpc::Role::kClient, engine_->next_connection_id(), device, std::move(watched),
                                       std::move(qp), options, rpc::HelloFields{{"wire", "1"}}, nullptr);
    connection->engine = engine_.get();
    {
      std::lock_guard lock(connection->mutex);
      EXPECT_TRUE(connection->session().start(now_ns()).ok());
    }
    engine_->add(connection);
    return connection;
  }
  // Gives the handle by which the test answers the call.
  uint64_t start(const ConnectionRef& connection, std::function<void()> on_done) {
    const auto call = connection->new_call();
    call->on_done = std::move(on_done);
    {
      std::lock_guard lock(connection->mutex);
      rpc::CallRequest request{"m", {}, {}, std::nullopt, kNever};
      EXPECT_TRUE(connection->session().client().start(call, std::move(request), now_ns()).ok());
      engine_->settle(connection, now_ns());
    }
    Work work;
    EXPECT_EQ(server_.next(work, patiently_ms(10'000), kUninterrupted), NextResult::kWork);
    return work.handle;
  }
  // The engine's thread delivers a reply of the other connection, and stays there.
  void hold_engine_up() {
    const uint64_t handle = start(other_, [this] {
      held_up_ = true;
      while (!goes_on_) sleep_ms(1);
    });
    (void)server_.reply(handle, {});
    ASSERT_TRUE(eventually([this] { return held_up_.load(); }));
  }
  void let_engine_go_on() { goes_on_ = true; }
  // Over another connection than those that the test ends. Gives the thread that delivered the reply.
  std::thread::id call_once() {
    std::atomic<bool> done{false};
    std::thread::id deliverer;
    const uint64_t handle = start(other_, [&] {
      deliverer = std::this_thread::get_id();
      done = true;
    });
    (void)server_.reply(handle, {});
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    return deliverer;
  }

  const bool bits_;  // whether what polls a connection may be told by a bit that there is something
  Server server_;
  const std::string address_;
  const std::shared_ptr<Engine> engine_;
  ConnectionRef shared_;
  ConnectionRef other_;
  std::atomic<bool> held_up_{false};
  std::atomic<bool> goes_on_{false};
};

// One caller polls the armed connection for a moment. Another caller goes to sleep on it meanwhile and is woken, but
// before it runs the first one gives the connection back, armed. The second caller's poll disarms the connection again.
TEST_F(SharedConnection, ALeaderThatFindsItGivenBackLeavesItArmed) {
  std::atomic<int> done{0};
  const uint64_t first = start(shared_, [&done] { ++done; });
  const uint64_t second = start(shared_, [&done] { ++done; });
  ASSERT_TRUE(eventually([this] { return shared_->attendance == Attendance::kArmed; }));
  hold_engine_up();
  {
    std::lock_guard lock(shared_->mutex);
    ASSERT_TRUE(engine_->take_over(*shared_));
    engine_->detach(*shared_);  // the second caller, which was woken by the time of give_back()
    engine_->give_back(shared_, now_ns());
    EXPECT_EQ(shared_->attendance, Attendance::kArmed);
  }
  (void)server_.reply(first, {});
  {
    std::lock_guard lock(shared_->mutex);
    shared_->session().endpoint().look_at_wait_handles();
    shared_->session().endpoint().arm();
    EXPECT_GT(shared_->session().progress(now_ns()), 0u);
    EXPECT_EQ(done, 1);
    engine_->reattach(shared_);
  }
  (void)server_.reply(second, {});
  let_engine_go_on();
  EXPECT_TRUE(eventually([&] { return done == 2; }, 3000)) << "nobody was told of the reply";
}

// Keeps the thread that destroys connections, until released.
class DestroyerHeldUp {
 public:
  DestroyerHeldUp() {
    EXPECT_TRUE(run_behind(Behind::kEnds, [held = held_] { held->wait(true); }));
  }
  ~DestroyerHeldUp() { release(); }
  DestroyerHeldUp(const DestroyerHeldUp&) = delete;
  DestroyerHeldUp& operator=(const DestroyerHeldUp&) = delete;
  void release() {
    held_->store(false);
    held_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> held_ = std::make_shared<std::atomic<bool>>(true);
};

class ConnectionBesideALoop : public SharedConnection {
 protected:
  ConnectionBesideALoop() : SharedConnection(hooks(), false) {}
  static Engine::Hooks hooks() {
    Engine::Hooks hooks;
    hooks.spin_beside_loop = [] { return std::optional<TimeNs>(0); };
    return hooks;
  }
};

TEST_F(ConnectionBesideALoop, IsTheLoopsWhileThatPollsItAndArmedAtOnceThen) {
  const auto is = [this](Attendance attendance) { return shared_->attendance.load() == attendance; };
  EXPECT_TRUE(eventually([&] { return is(Attendance::kArmed); }));
  const TimeNs long_after = now_ns() + 3600 * kSecond;
  shared_->loop_polled_at = long_after;
  {
    std::lock_guard lock(shared_->mutex);
    engine_->warm(shared_);
  }
  for (int i = 0; i < 3; ++i) call_once();  // so that the engine's thread goes round
  EXPECT_TRUE(is(Attendance::kHot));
  shared_->last_active = long_after;  // it would linger for that long
  shared_->loop_polled_at = 0;
  EXPECT_TRUE(eventually([&] { return is(Attendance::kArmed); }));
}

class PolledConnection : public SharedConnection {
 protected:
  PolledConnection() : SharedConnection({}, false) {}
};

TEST_F(PolledConnection, ItsTicksAreSeldomWhereOthersPollAllThatIsHot) {
  const auto seldom = [this] { return engine_->ticks_seldom(); };
  const auto polled = [this] {  // as if callers found something all the time
    for (const ConnectionRef& connection : {shared_, other_}) connection->last_active = now_ns() + 3600 * kSecond;
  };
  EXPECT_TRUE(eventually(
      [this] { return shared_->attendance == Attendance::kArmed && other_->attendance == Attendance::kArmed; }));
  for (const ConnectionRef& connection : {shared_, other_}) {
    std::lock_guard lock(connection->mutex);
    engine_->warm(connection);
  }
  polled();
  EXPECT_TRUE(eventually(seldom));
  EXPECT_EQ(shared_->attendance.load(), Attendance::kHot);
  EXPECT_TRUE(eventually([this] {
    std::lock_guard lock(shared_->mutex);
    return engine_->polls_soon(*shared_);
  })) << "it isn't asked for, or in vain";
  EXPECT_TRUE(eventually(seldom));
  EXPECT_TRUE(eventually([&] {
    engine_->tick_soon();
    return !seldom();
  })) << "what nobody waits for is left to a tick that is long in coming";
  EXPECT_TRUE(eventually(seldom));
  std::atomic<int> done{0};
  const uint64_t first = start(shared_, [&done] { ++done; });
  const uint64_t second = start(other_, [&done] { ++done; });
  EXPECT_TRUE(eventually([&] {
    polled();
    return !seldom();
  }));
  for (int i = 0; i < 30; ++i, sleep_ms(1)) {
    polled();
    EXPECT_FALSE(seldom()) << "calls are under way that nobody may wait for";
  }
  for (const uint64_t handle : {first, second}) (void)server_.reply(handle, {});
  EXPECT_TRUE(eventually([&done] { return done == 2; }));
}

TEST_F(SharedConnection, ConnectionsAreDestroyedByAnotherThreadThanTheirPoller) {
  DestroyerHeldUp held;
  std::atomic<bool> destroyed{false};
  std::thread::id destroyer;
  std::weak_ptr<Connection> ended;
  {
    const ConnectionRef connection = dial([&] {
      destroyer = std::this_thread::get_id();
      destroyed = true;
    });
    ended = connection;
    {
      std::lock_guard lock(connection->mutex);
      connection->session().close(unavailable("it is ended"));
    }
    engine_->see_off(connection);
  }
  ASSERT_TRUE(eventually([&] { return ended.expired(); }));
  const std::thread::id poller = call_once();  // polls on meanwhile
  EXPECT_FALSE(destroyed);
  held.release();
  wait_behind(Behind::kEnds);
  ASSERT_TRUE(destroyed);
  EXPECT_NE(destroyer, poller);
  EXPECT_NE(destroyer, std::this_thread::get_id());
}

TEST_F(SharedConnection, NobodyIsAcceptedWhileTooManyConnectionsWaitForTheirDestruction) {
  DestroyerHeldUp held;
  for (size_t i = 0; i < Connection::kEndingMax; ++i) ASSERT_TRUE(run_behind(Behind::kEnds, [] {}));
  const ConnectionRef waits = begin_to_dial();
  for (int i = 0; i < 500; ++i) call_once();  // the server looks at its listener meanwhile
  EXPECT_EQ(server_.connection_count(), 2u);
  held.release();
  while (!waits->ready) call_once();
  EXPECT_EQ(server_.connection_count(), 3u);
  std::lock_guard lock(waits->mutex);
  waits->session().close(unavailable("the test is over"));
}

// How often each thread of this process has gone to sleep.
std::map<std::string, uint64_t> sleeps_of_threads() {
  std::map<std::string, uint64_t> sleeps;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;)
      if (word == "voluntary_ctxt_switches:") status >> sleeps[task.path().filename()];
  }
  return sleeps;
}

// It has nobody to tell: the worker that polls is the only one.
TEST(EnginePolling, TheOnlyWorkerThatPollsHasItsEngineTickSeldom) {
  Options options = quiet();
  options.poll = PollMode::kBusy;
  Server server(options);
  const auto address = server.listen(new_address("shm"));
  ASSERT_TRUE(address.ok());
  std::jthread worker([&server] {
    Work work;
    while (server.next(work, kNever, kUninterrupted) == NextResult::kWork) (void)server.reply(work.handle, {});
  });
  {
    const auto client = connect_to(*address);
    for (int i = 0; i < HandlerTimes::kAloneMin; ++i) EXPECT_TRUE(TestCall(*client, "m", "").wait().ok());
  }
  sleep_ms(100);  // until the ticks are as seldom as they get
  const TimeNs began = now_ns();
  const auto before = sleeps_of_threads();
  sleep_ms(300);
  const auto after = sleeps_of_threads();
  const auto ticks_max = static_cast<uint64_t>((now_ns() - began) / (2 * kMillisecond));
  for (const auto& [thread, count] : after) {
    const auto known = before.find(thread);
    EXPECT_LT(count - (known == before.end() ? 0 : known->second), ticks_max);
  }
  server.stop();
}

}  // namespace
}  // namespace rrpc::driver::testing
