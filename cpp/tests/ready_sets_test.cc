// What a poller knows of the bits that its connections' peers raise.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

#include "driver/ready_sets.h"

namespace rrpc::driver {
namespace {

using provider::ReadyBits;
using provider::ReadyPage;

struct PageMemory {
  ReadyPage page{};
};
// Of a peer that is in this process.
class OwnBits : private PageMemory, public ReadyBits {
 public:
  explicit OwnBits(uint32_t words) : ReadyBits(page) { use_words(words); }
  bool raise(uint32_t bit) { return page.raise(bit); }
};

std::vector<uint64_t> taken(ReadySets& sets) {
  std::vector<uint64_t> ids;
  sets.take([&](uint64_t id) { ids.push_back(id); });
  return ids;
}

TEST(ReadySets, TellWhoseBitWasRaised) {
  ReadySets sets;
  const auto first = std::make_shared<OwnBits>(2);
  const auto second = std::make_shared<OwnBits>(1);
  sets.add(first, 3, 1003);
  sets.add(first, 70, 1070);
  sets.add(second, 3, 2003);
  EXPECT_TRUE(taken(sets).empty());
  first->raise(70);
  second->raise(3);
  EXPECT_EQ(taken(sets), (std::vector<uint64_t>{1070, 2003}));
  EXPECT_TRUE(taken(sets).empty());
}

TEST(ReadySets, ABitThatNobodyHasMeansNothing) {
  ReadySets sets;
  const auto bits = std::make_shared<OwnBits>(ReadyPage::kWords);
  sets.add(bits, 5, 7);
  bits->raise(4);
  bits->raise(6);
  bits->raise(ReadyPage::kBits - 1);
  EXPECT_TRUE(taken(sets).empty());
}

TEST(ReadySets, ABitIsItsLastOwners) {
  ReadySets sets;
  const auto bits = std::make_shared<OwnBits>(1);
  sets.add(bits, 5, 7);
  sets.add(bits, 5, 8);
  bits->raise(5);
  EXPECT_EQ(taken(sets), std::vector<uint64_t>{8});
}

TEST(ReadySets, WhoRaisesABitWhileThePollerSleepsWakesItOnce) {
  ReadySets sets;
  const auto bits = std::make_shared<OwnBits>(2);
  sets.add(bits, 5, 7);
  sets.add(bits, 69, 8);
  EXPECT_FALSE(bits->raise(5)) << "it polls";
  EXPECT_FALSE(sets.arm()) << "raised before it slept";
  (void)taken(sets);
  EXPECT_TRUE(sets.arm());
  EXPECT_TRUE(bits->raise(69));
  EXPECT_FALSE(bits->raise(5));
  sets.disarm();
  (void)taken(sets);
  EXPECT_TRUE(sets.arm());
  sets.disarm();
  EXPECT_FALSE(bits->raise(5)) << "it polls again";
}

TEST(ReadySets, WhatIsNotSeenToForWantOfMemoryStaysRaised) {
  ReadySets sets;
  const auto bits = std::make_shared<OwnBits>(1);
  for (uint32_t bit = 1; bit <= 3; ++bit) {
    sets.add(bits, bit, 100 + bit);
    bits->raise(bit);
  }
  std::vector<uint64_t> ids;
  EXPECT_THROW(sets.take([&](uint64_t id) {
    if (id == 102) throw std::bad_alloc();
    ids.push_back(id);
  }),
               std::bad_alloc);
  EXPECT_EQ(ids, std::vector<uint64_t>{101});
  EXPECT_FALSE(sets.arm()) << "the poller doesn't sleep";
  sets.disarm();
  EXPECT_EQ(taken(sets), (std::vector<uint64_t>{102, 103}));
}

TEST(ReadySets, TheBitsOfAProcessThatIsGoneAreLetGo) {
  ReadySets sets;
  auto gone = std::make_shared<OwnBits>(1);
  const auto alive = std::make_shared<OwnBits>(1);
  const std::weak_ptr<OwnBits> watched = gone;
  sets.add(gone, 1, 1);
  sets.add(alive, 1, 2);
  for (int i = 0; i < 4; ++i) sets.tidy();
  EXPECT_FALSE(watched.expired());
  gone.reset();
  for (int i = 0; i < 4; ++i) sets.tidy();
  EXPECT_TRUE(watched.expired());
  alive->raise(1);
  EXPECT_EQ(taken(sets), std::vector<uint64_t>{2});
  sets.add(alive, 2, 3);
  alive->raise(2);
  EXPECT_EQ(taken(sets), std::vector<uint64_t>{3});
  EXPECT_NE(sets.look_again_at(), kNever);
}

TEST(ReadySets, WithoutAnyNobodyIsWokenForThem) {
  ReadySets sets;
  EXPECT_TRUE(sets.arm());
  EXPECT_EQ(sets.look_again_at(), kNever);
}

}  // namespace
}  // namespace rrpc::driver
