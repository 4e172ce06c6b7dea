// When another worker is woken to poll while a call is handled.
#include "driver/handler_times.h"

#include <gtest/gtest.h>

namespace rrpc::driver {
namespace {

class HandlerTimesTest : public ::testing::Test {
 protected:
  void handlers_take(TimeNs time) {
    for (int i = 0; i < 100; ++i) times_.took(time);
  }
  bool after_calls_alone(int count) {
    bool wants = false;
    for (int i = 0; i < count; ++i) wants = times_.wants_poller(true, now_);
    return wants;
  }

  HandlerTimes times_;
  TimeNs now_ = kSecond;
};

TEST_F(HandlerTimesTest, NotWhereHandlersAreQuick) {
  handlers_take(20 * kMicrosecond);
  EXPECT_FALSE(times_.wants_poller(false, now_));
  EXPECT_FALSE(times_.wants_poller(true, now_));
}

TEST_F(HandlerTimesTest, WhereTheyAreSlowUntilCallsKeepComingOneAtATime) {
  handlers_take(100 * kMicrosecond);
  EXPECT_TRUE(times_.wants_poller(true, now_));
  EXPECT_TRUE(after_calls_alone(HandlerTimes::kAloneMin - 2));
  EXPECT_FALSE(times_.wants_poller(true, now_));
  EXPECT_FALSE(after_calls_alone(1000));
}

TEST_F(HandlerTimesTest, AgainOnceTwoCameTogether) {
  handlers_take(100 * kMicrosecond);
  EXPECT_FALSE(after_calls_alone(1000));
  EXPECT_TRUE(times_.wants_poller(false, now_));
  EXPECT_TRUE(after_calls_alone(HandlerTimes::kAloneMin - 1));
}

TEST_F(HandlerTimesTest, AlwaysWhereTheyAreVerySlow) {
  handlers_take(kMillisecond);
  EXPECT_TRUE(after_calls_alone(1000));
}

TEST_F(HandlerTimesTest, OneWorkerIsEnoughWhileItTakesBriefCallsOneAfterTheOther) {
  handlers_take(2 * kMicrosecond);
  EXPECT_FALSE(times_.moves_on(now_)) << "none was taken";
  (void)times_.wants_poller(false, now_);
  EXPECT_TRUE(times_.moves_on(now_ + kMicrosecond));
  EXPECT_FALSE(times_.moves_on(now_ + HandlerTimes::kLately)) << "this one takes long";
  handlers_take(HandlerTimes::kBrief * 2);
  EXPECT_FALSE(times_.moves_on(now_)) << "another worker may help";
}

}  // namespace
}  // namespace rrpc::driver
