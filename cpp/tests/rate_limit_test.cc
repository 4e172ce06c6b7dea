#include "driver/rate_limit.h"

#include <gtest/gtest.h>

namespace rrpc::driver {
namespace {

int taken_at(RateLimit& limit, TimeNs now, int tries) {
  int taken = 0;
  for (int i = 0; i < tries; ++i) taken += limit.take(now) <= 0 ? 1 : 0;
  return taken;
}

TEST(RateLimit, TakesABurstThenOneForEachInterval) {
  RateLimit limit(10, 3);
  const TimeNs begin = 1000 * kSecond;
  EXPECT_EQ(taken_at(limit, begin, 5), 3);
  EXPECT_EQ(limit.wait(begin), 100 * kMillisecond);
  EXPECT_EQ(taken_at(limit, begin + 99 * kMillisecond, 5), 0);
  EXPECT_EQ(taken_at(limit, begin + 100 * kMillisecond, 5), 1);
  EXPECT_EQ(taken_at(limit, begin + 250 * kMillisecond, 5), 1);
  EXPECT_EQ(taken_at(limit, begin + 300 * kMillisecond, 5), 1);
}

TEST(RateLimit, SavesNoMoreThanTheBurst) {
  RateLimit limit(10, 3);
  EXPECT_EQ(taken_at(limit, kSecond, 5), 3);
  EXPECT_EQ(taken_at(limit, 1000 * kSecond, 5), 3);
}

TEST(RateLimit, TakesTheRateInTheLongRun) {
  RateLimit limit(250, 0);
  int taken = 0;
  for (TimeNs now = kSecond; now < 11 * kSecond; now += kMillisecond) taken += taken_at(limit, now, 2);
  EXPECT_EQ(taken, 250 + 10 * 250 - 1);
}

TEST(RateLimit, LetsOneThroughWhereASecondHasLess) {
  RateLimit limit(0.5, 0);
  EXPECT_EQ(taken_at(limit, kSecond, 3), 1);
  EXPECT_EQ(taken_at(limit, 3 * kSecond, 3), 1);
}

TEST(RateLimit, TakesNothingMoreWhereTheClockLags) {
  RateLimit limit(10, 1);
  EXPECT_EQ(taken_at(limit, 2 * kSecond, 1), 1);
  EXPECT_EQ(taken_at(limit, kSecond, 1), 0);
}

TEST(RateLimit, IsNoneAtZero) { EXPECT_FALSE(RateLimit(0, 0).limits()); }

}  // namespace
}  // namespace rrpc::driver
