#include "base/split_work.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace rrpc {
namespace {

// Whether every piece ran, and once.
bool each_once(size_t count) {
  std::vector<int> times(count);  // the pieces are apart, so that two threads may write
  split_work(count, [](void* context, size_t index) { ++(*static_cast<std::vector<int>*>(context))[index]; }, &times);
  return std::ranges::all_of(times, [](int ran) { return ran == 1; });
}

TEST(SplitWork, RunsEveryPieceOnce) {
  for (size_t round = 0; round < 3000; ++round) ASSERT_TRUE(each_once(round % 40)) << round;
}

TEST(SplitWork, TwoThreadsDoIt) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one core";
  struct Ids {
    std::thread::id caller;
    std::atomic<bool> helped{false};
  } ids{std::this_thread::get_id()};
  const auto piece = [](void* context, size_t) {
    Ids& of = *static_cast<Ids*>(context);
    if (std::this_thread::get_id() != of.caller) of.helped = true;
  };
  while (!ids.helped) split_work(1000, piece, &ids);
}

TEST(SplitWork, ManyCallersDoNotMeet) {
  std::atomic<bool> right{true};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 1000; ++round)
        if (!each_once(16)) right = false;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(right);
}

TEST(SplitWork, AForkedChildHasAHelperOfItsOwn) {
  ASSERT_TRUE(each_once(16));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = true;
    for (int round = 0; round < 1000; ++round) right = right && each_once(16);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace rrpc
