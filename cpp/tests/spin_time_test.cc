// How long a poller spins before it sleeps.
#include <gtest/gtest.h>

#include "driver/spinner.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kMost = 200 * kMicrosecond;

TEST(SpinTime, AllThatMayBeAtFirst) { EXPECT_EQ(SpinTime().now(kMost), kMost); }

TEST(SpinTime, LessAndLessWhereNothingComesInTime) {
  SpinTime spin;
  spin.came_after(kMillisecond, kMost);
  EXPECT_EQ(spin.now(kMost), kMost / 2);
  for (int i = 0; i < 20; ++i) spin.came_after(kMillisecond, kMost);
  EXPECT_EQ(spin.now(kMost), 0);
}

TEST(SpinTime, AllAgainOnceSomethingCameInTime) {
  SpinTime spin;
  for (int i = 0; i < 20; ++i) spin.came_after(kMillisecond, kMost);
  spin.came_after(kMost, kMost);
  EXPECT_EQ(spin.now(kMost), kMost);
}

// A pause between bursts costs no more than half of it.
TEST(SpinTime, OnePauseTakesHalf) {
  SpinTime spin;
  for (int burst = 0; burst < 5; ++burst) {
    spin.came_after(kSecond, kMost);
    EXPECT_EQ(spin.now(kMost), kMost / 2);
    spin.came_after(kMicrosecond, kMost);
    EXPECT_EQ(spin.now(kMost), kMost);
  }
}

TEST(SpinTime, WithoutEndOrNotAtAllStaySo) {
  SpinTime spin;
  for (int i = 0; i < 20; ++i) spin.came_after(kSecond, kNever);
  EXPECT_EQ(spin.now(kNever), kNever) << "poll=busy";
  spin.came_after(kSecond, 0);
  EXPECT_EQ(spin.now(0), 0) << "poll=event";
}

}  // namespace
}  // namespace rrpc::driver
