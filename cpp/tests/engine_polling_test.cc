// A connection that several callers of one process poll and sleep on, step by step: what each leaves to the engine.
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

// No timer of a session wakes anybody: a wake-up that is lost is lost for good.
Options quiet() {
  Options options;
  options.session.keepalive_interval = kNever;
  return options;
}

// Clients' connections with an engine of their own, whose thread the test can hold up; and their server, whose only
// worker is the test.
class SharedConnection : public ::testing::Test {
 protected:
  SharedConnection() : server_(quiet()), address_(server_.listen(new_address("shm")).value()) {
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

  ConnectionRef dial() {
    DeviceEntry& device = *find_device("shm").value();
    const Options options = quiet();
    const auto config = endpoint::queue_pair_config(options.session.geometry);
    auto cq = device.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto qp = device.device->open(*cq, parse_address(address_).value().rest, config, kNever).value();
    auto connection =
        std::make_shared<Connection>(rpc::Role::kClient, engine_->next_connection_id(), device, std::move(cq),
                                     std::move(qp), options, rpc::HelloFields{{"wire", "1"}}, nullptr);
    connection->engine = engine_.get();
    {
      std::lock_guard lock(connection->mutex);
      EXPECT_TRUE(connection->session().start(now_ns()).ok());
    }
    engine_->add(connection);
    EXPECT_TRUE(eventually([&] { return connection->ready.load(); }));
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

  Server server_;
  const std::string address_;
  const std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
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

}  // namespace
}  // namespace rrpc::driver::testing
