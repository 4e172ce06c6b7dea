#include "endpoint/credits.h"

#include <gtest/gtest.h>

#include <deque>

#include "provider/sim/rng.h"

namespace rrpc::endpoint {
namespace {

using provider::sim::Rng;

TEST(SendWindow, ClosesWhenItsCreditsAreOutAndOpensWithReturns) {
  SendWindow window(3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(window.open());
    window.take();
  }
  EXPECT_FALSE(window.open());
  EXPECT_TRUE(window.on_grant(2));
  EXPECT_EQ(window.in_flight(), 1u);
  EXPECT_TRUE(window.on_grant(2)) << "a repeated return does no harm";
  EXPECT_EQ(window.in_flight(), 1u);
  EXPECT_TRUE(window.open());
}

TEST(SendWindow, WithoutASizeStaysShut) { EXPECT_FALSE(SendWindow().open()); }

TEST(SendWindow, RefusesReturnsOfWhatWasNotSent) {
  SendWindow window(8);
  EXPECT_FALSE(window.on_grant(1));
  window.take();
  EXPECT_FALSE(window.on_grant(2));
  EXPECT_EQ(window.in_flight(), 1u) << "a refused return changes nothing";
  EXPECT_FALSE(window.on_grant(0xffffffff));
  EXPECT_TRUE(window.on_grant(1));
  EXPECT_FALSE(window.on_grant(0));
}

TEST(ReceiveWindow, SeesAPeerThatOverruns) {
  ReceiveWindow window(2);
  EXPECT_TRUE(window.on_arrival());
  EXPECT_TRUE(window.on_arrival());
  window.on_reposted();
  window.on_reposted();
  EXPECT_FALSE(window.on_arrival()) << "reposted, but the peer could not know";
}

TEST(ReceiveWindow, OwesAReturnAtHalf) {
  for (uint32_t size = 1; size <= 9; ++size) {
    ReceiveWindow window(size);
    for (uint32_t i = 1; i <= size; ++i) {
      ASSERT_TRUE(window.on_arrival());
      window.on_reposted();
      EXPECT_EQ(window.owes_return(), 2 * i >= size) << i << " of " << size;
    }
    window.announced();
    EXPECT_FALSE(window.owes_return());
  }
}

// Counters are 32 bits wide and wrap after four thousand million messages.
TEST(Windows, GoOnPastTheWrapOfTheirCounters) {
  constexpr uint32_t kFirst = 0xffffffff - 50;
  SendWindow sender(4, kFirst);
  ReceiveWindow receiver(4, kFirst);
  constexpr uint32_t kTotal = 100;
  for (uint32_t i = 0; i < kTotal; ++i) {
    ASSERT_TRUE(sender.open());
    sender.take();
    ASSERT_TRUE(receiver.on_arrival()) << i;
    receiver.on_reposted();
    if (!receiver.owes_return()) continue;
    receiver.announced();
    ASSERT_TRUE(sender.on_grant(receiver.granted())) << i;
  }
  EXPECT_EQ(receiver.granted(), kFirst + kTotal);
}

// However late returns are seen, the sender never overruns, is never left without a credit for ever, and at most two
// stand-alone returns of a window are unseen.
TEST(Windows, AtMostTwoReturnsAreUnseen) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Rng rng(seed);
    const auto size = static_cast<uint32_t>(rng.between(1, 60));
    SendWindow sender(size);
    ReceiveWindow receiver(size);
    uint32_t in_transit = 0;
    std::deque<uint32_t> returns;
    for (int step = 0; step < 500; ++step) {
      switch (rng.between(0, 2)) {
        case 0:
          if (!sender.open()) break;
          sender.take();
          ++in_transit;
          break;
        case 1:
          if (in_transit == 0) break;
          --in_transit;
          ASSERT_TRUE(receiver.on_arrival()) << "seed " << seed;
          receiver.on_reposted();
          if (!receiver.owes_return()) break;
          returns.push_back(receiver.granted());
          receiver.announced();
          ASSERT_LE(returns.size(), 2u) << "seed " << seed;
          break;
        default:
          if (returns.empty()) break;
          ASSERT_TRUE(sender.on_grant(returns.front())) << "seed " << seed;
          returns.pop_front();
      }
      ASSERT_TRUE(sender.open() || in_transit > 0 || !returns.empty()) << "seed " << seed << ": both ends wait";
    }
  }
}

}  // namespace
}  // namespace rrpc::endpoint
