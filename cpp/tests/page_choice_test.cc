#include "base/page_choice.h"

#include <gtest/gtest.h>

namespace rrpc {
namespace {

constexpr TimeNs kSmall = 800'000;
constexpr TimeNs kFast = 200'000;
constexpr TimeNs kSlow = 5'000'000;

struct PageChoiceTest : testing::Test {
  PageChoiceTest() { choice.took_small(kSmall); }
  PageChoice choice;
};

TEST_F(PageChoiceTest, HugePagesAreTakenWhileTheyAreFast) {
  EXPECT_TRUE(choice.huge());
  for (int piece = 0; piece < 10; ++piece) choice.took_huge(kFast);
  EXPECT_TRUE(choice.huge());
}

TEST_F(PageChoiceTest, OneSlowPieceIsForgiven) {
  choice.took_huge(kSlow);
  EXPECT_TRUE(choice.huge()) << "the first of all";
  for (int piece = 0; piece < 10; ++piece) choice.took_huge(kFast);
  choice.took_huge(kSlow);
  EXPECT_TRUE(choice.huge()) << "after fast ones";
}

TEST_F(PageChoiceTest, TwoSlowPiecesInARowAreBelieved) {
  choice.took_huge(kSlow);
  choice.took_huge(kSlow);
  EXPECT_FALSE(choice.huge());
  choice.took_huge(kSlow);
  EXPECT_FALSE(choice.huge()) << "still";
}

TEST_F(PageChoiceTest, EveryOtherPieceSlowIsTooMuch) {
  for (int pair = 0; pair < 4 && choice.huge(); ++pair) {
    choice.took_huge(kFast);
    choice.took_huge(kSlow);
  }
  EXPECT_FALSE(choice.huge());
}

TEST_F(PageChoiceTest, OneFastPieceBringsHugePagesBack) {
  for (int piece = 0; piece < 10; ++piece) choice.took_huge(kSlow);
  choice.took_huge(kFast);
  EXPECT_TRUE(choice.huge());
}

TEST_F(PageChoiceTest, PagesThatAreSlowEitherWayAreHuge) {
  choice.took_small(kSlow);
  for (int piece = 0; piece < 10; ++piece) choice.took_huge(kSlow);
  EXPECT_TRUE(choice.huge());
}

}  // namespace
}  // namespace rrpc
