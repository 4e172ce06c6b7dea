#include "driver/timers.h"

#include <gtest/gtest.h>

#include <vector>

namespace rrpc::driver {
namespace {

using Ids = std::vector<uint64_t>;

TEST(Timers, WhatIsDueComesInTheOrderOfItsDeadlines) {
  Timers timers;
  Timer first(1);
  Timer second(2);
  Timer third(3);
  timers.note(first, 30);
  timers.note(second, 10);
  timers.note(third, 20);
  EXPECT_EQ(timers.next(), 10);
  EXPECT_EQ(timers.take_due(9), Ids());
  EXPECT_EQ(timers.take_due(20), (Ids{2, 3}));
  EXPECT_EQ(timers.next(), 30);
}

TEST(Timers, AConnectionHasOneEntryWithItsEarliestDeadline) {
  Timers timers;
  Timer timer(1);
  for (const TimeNs deadline : {50, 70, 20, 40, 20}) timers.note(timer, deadline);
  EXPECT_EQ(timers.next(), 20);
  EXPECT_EQ(timers.take_due(100), Ids{1});
  EXPECT_EQ(timers.next(), kNever);
}

TEST(Timers, ItIsSetAgainOnceItWasTaken) {
  Timers timers;
  Timer timer(1);
  timers.note(timer, 10);
  EXPECT_EQ(timers.take_due(10), Ids{1});
  timers.note(timer, 10);  // what was noted for it meanwhile is looked at when it is tended
  timers.set(timer, 30);
  EXPECT_EQ(timers.take_due(29), Ids());
  EXPECT_EQ(timers.take_due(30), Ids{1});
}

TEST(Timers, ItCanBePutOffAndTakenOut) {
  Timers timers;
  Timer timer(1);
  timers.note(timer, 10);
  timers.set(timer, 40);
  EXPECT_EQ(timers.next(), 40);
  timers.set(timer, kNever);
  EXPECT_EQ(timers.next(), kNever);
  timers.note(timer, 5);
  EXPECT_EQ(timers.take_due(5), Ids{1});
}

}  // namespace
}  // namespace rrpc::driver
