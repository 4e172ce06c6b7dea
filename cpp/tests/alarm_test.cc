// The timer for which an engine's thread sleeps while a worker sleeps in epoll, and what it is set for.
#include "driver/alarm.h"

#include <thread>

#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

struct AlarmTest : ::testing::Test {
  AlarmTest() { EXPECT_TRUE(alarm.open()); }
  Alarm alarm;
};

TEST_F(AlarmTest, RingsWhenItIsSetTo) {
  alarm.set(kMillisecond);
  alarm.wait(kNever);
  alarm.set(2 * kSecond);
  alarm.set(1);
  alarm.wait(kNever);
}

TEST_F(AlarmTest, OneThatWasStoppedDoesNotRing) {
  alarm.set(kMillisecond);
  alarm.stop();
  const TimeNs begin = now_ns();
  alarm.wait(20 * kMillisecond);
  EXPECT_GE(now_ns() - begin, 20 * kMillisecond);
}

TEST_F(AlarmTest, HasRungOnceItWasWaitedFor) {
  alarm.ring();
  alarm.wait(kNever);
  const TimeNs begin = now_ns();
  alarm.wait(5 * kMillisecond);
  EXPECT_GE(now_ns() - begin, 5 * kMillisecond);
}

TEST_F(AlarmTest, WakesAThreadThatWaitsAlready) {
  std::thread waiting([this] { alarm.wait(kNever); });
  alarm.set(kMillisecond);
  waiting.join();
}

// Nobody but the engine's thread can let the second client in while the only worker is in its handler.
TEST(ParkedEngine, PollsATickAfterItsOnlyWorkerWentToAHandler) {
  Options options;
  options.session.keepalive_interval = kNever;
  Server server(options);
  const std::string address = server.listen(new_address("shm")).value();
  std::atomic<bool> in_handler{false};
  std::atomic<bool> goes_on{false};
  std::thread worker([&] {
    Work work;
    while (server.next(work, kNever, kUninterrupted) == NextResult::kWork) {
      in_handler = true;
      EXPECT_TRUE(eventually([&] { return goes_on.load(); }));
      (void)server.reply(work.handle, {});
      work = Work();
    }
  });
  {
    const auto client = Client::connect(address, options, patiently_ms(10'000)).value();
    ASSERT_TRUE(eventually([&] { return server.engine().is_parked(); }));
    const auto call = client->new_call();
    ASSERT_TRUE(client->start(call, {"m", {}, {}, std::nullopt, kNever}).ok());
    EXPECT_TRUE(eventually([&] { return in_handler.load(); }));
    const auto other = Client::connect(address, options, patiently_ms(5'000));
    EXPECT_TRUE(other.ok()) << other.status().to_string();
    goes_on = true;
    EXPECT_EQ(client->wait(call, patiently_ms(10'000), kUninterrupted), WaitResult::kDone);
  }
  server.stop();
  worker.join();
}

}  // namespace
}  // namespace rrpc::driver::testing
