// Budgets: what one connection may hold, who waits for it, and that it comes back.
#include "rpc/budget.h"

#include <gtest/gtest.h>

#include <thread>

namespace rrpc::rpc {
namespace {

struct BudgetTest : ::testing::Test {
  std::shared_ptr<Account> account(size_t own_limit = SIZE_MAX) {
    return std::make_shared<Account>(budgets, &Budgets::landing, own_limit);
  }
  std::shared_ptr<Budgets> budgets = std::make_shared<Budgets>(1200, 1200, 1 << 20);
};

TEST_F(BudgetTest, HogsLeaveRoomForOneMore) {
  std::vector<std::shared_ptr<Account>> hogs;
  for (size_t count = 1; count <= 5; ++count) {
    hogs.push_back(account());
    // Each takes all that it can, and the earlier ones stay where they are.
    while (hogs.back()->take(10)) {
    }
    const size_t left = 1200 - budgets->landing.held();
    EXPECT_LE(hogs.back()->held(), left) << count;
    EXPECT_GE(left, size_t{1200} >> count) << count;
    const auto newcomer = account();
    EXPECT_TRUE(newcomer->take(left / 2)) << count;
    newcomer->give_back(left / 2);
  }
}

TEST_F(BudgetTest, AloneAConnectionMayHaveItAll) {
  const auto lone = account();
  EXPECT_EQ(lone->limit(), 1200u);
  EXPECT_TRUE(lone->take(1200));
  EXPECT_FALSE(account()->take(1));
  lone->give_back(1200);
  EXPECT_EQ(account(0)->limit(), 600u) << "without a limit of its own: half";
  EXPECT_EQ(account(100)->limit(), 100u);
  EXPECT_FALSE(account(100)->take(101));
}

TEST_F(BudgetTest, ThoseThatWaitAreServedInTurn) {
  const auto holder = account(), first = account(), second = account();
  ASSERT_TRUE(holder->take(1200));
  std::vector<int> told;
  first->set_on_granted([&] { told.push_back(1); });
  second->set_on_granted([&] { told.push_back(2); });
  EXPECT_FALSE(first->take_or_wait(300));
  EXPECT_FALSE(second->take_or_wait(100));
  EXPECT_TRUE(first->waiting() && second->waiting());
  holder->give_back(700);  // 700 are free: 300 for the first, then 100 of 400 for the second
  EXPECT_EQ(told, (std::vector<int>{1, 2}));
  EXPECT_FALSE(first->waiting());
  EXPECT_EQ(budgets->landing.held(), 900u);
  EXPECT_TRUE(first->take_or_wait(300)) << "what was granted is taken once";
  EXPECT_FALSE(first->take_or_wait(300));
  EXPECT_TRUE(second->take_or_wait(100));
  EXPECT_EQ(budgets->landing.held(), 900u);
  first->stop_waiting();
  first->give_back(300);
  second->give_back(100);
  holder->give_back(500);
  EXPECT_EQ(budgets->landing.held(), 0u);
}

TEST_F(BudgetTest, AGrantThatNobodyTakesComesBack) {
  const auto holder = account(), next = account();
  auto waits = account();
  ASSERT_TRUE(holder->take(1200));
  EXPECT_FALSE(waits->take_or_wait(500));
  bool told = false;
  next->set_on_granted([&] { told = true; });
  EXPECT_FALSE(next->take_or_wait(400));
  holder->give_back(1200);
  EXPECT_EQ(budgets->landing.held(), 500u);
  EXPECT_FALSE(told) << "400 are more than what would be left";
  waits.reset();  // its connection has ended
  EXPECT_TRUE(told);
  EXPECT_EQ(budgets->landing.held(), 400u);
  EXPECT_TRUE(next->take_or_wait(400));
  next->give_back(400);
}

TEST_F(BudgetTest, AnotherRequestTakesThePlaceOfTheOneThatWaited) {
  const auto holder = account(), waits = account();
  ASSERT_TRUE(holder->take(1200));
  EXPECT_FALSE(waits->take_or_wait(500));
  holder->give_back(1200);
  EXPECT_TRUE(waits->take_or_wait(200));
  EXPECT_EQ(budgets->landing.held(), 200u);
  waits->give_back(200);
}

TEST_F(BudgetTest, AChargeOutlivesItsConnection) {
  auto mine = account();
  ASSERT_TRUE(mine->take(300));
  Charge charge(mine, 300);
  EXPECT_TRUE(charge.grow(mine, 400));
  EXPECT_FALSE(charge.grow(mine, 1300));
  EXPECT_EQ(charge.bytes(), 400u);
  mine.reset();
  EXPECT_EQ(budgets->landing.held(), 400u);
  Charge moved(std::move(charge));
  charge = {};
  EXPECT_EQ(budgets->landing.held(), 400u);
  moved = {};
  EXPECT_EQ(budgets->landing.held(), 0u);
}

TEST_F(BudgetTest, CountedBytesAreTakenInSteps) {
  const auto mine = std::make_shared<Account>(budgets, &Budgets::queued, size_t{512} << 10);
  CountedBytes bytes(mine);
  EXPECT_TRUE(bytes.add(64 << 10));
  EXPECT_EQ(mine->held(), 0u) << "what a ring takes isn't counted";
  EXPECT_TRUE(bytes.add(1));
  EXPECT_EQ(mine->held(), size_t{256} << 10);
  EXPECT_TRUE(bytes.add(500 << 10));
  EXPECT_FALSE(bytes.add(64 << 10));
  bytes.add_anyway(64 << 10);
  bytes.remove((564 << 10) + 1);
  EXPECT_EQ(mine->held(), 0u);
  EXPECT_EQ(bytes.used(), size_t{64} << 10);
}

TEST_F(BudgetTest, ThreadsKeepTheSum) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      const auto mine = account();
      for (int round = 0; round < 3000; ++round) {
        const auto bytes = static_cast<size_t>(1 + (round * 7 + i) % 300);
        if (round % 3 == 0) {
          while (!mine->take_or_wait(bytes)) {
            while (mine->waiting()) std::this_thread::yield();
          }
        } else if (!mine->take(bytes)) {
          continue;
        }
        mine->give_back(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budgets->landing.held(), 0u);
}

}  // namespace
}  // namespace rrpc::rpc
