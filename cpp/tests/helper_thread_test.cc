#include "base/helper_thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/detached_thread.h"
#include "base/numa.h"

namespace rrpc {
namespace {

// A job that keeps its thread until it is released.
class Plug {
 public:
  explicit Plug(Behind kind) {
    EXPECT_TRUE(run_behind(kind, [state = state_] {
      state->store(kRuns);
      state->notify_all();
      state->wait(kRuns);
    }));
    state_->wait(kWaits);
  }
  ~Plug() { release(); }
  Plug(const Plug&) = delete;
  Plug& operator=(const Plug&) = delete;
  void release() {
    state_->store(kReleased);
    state_->notify_all();
  }

 private:
  enum State : int { kWaits, kRuns, kReleased };
  const std::shared_ptr<std::atomic<int>> state_ = std::make_shared<std::atomic<int>>(kWaits);
};

TEST(HelperThread, RunsJobsInTheirOrder) {
  std::vector<int> ran;
  {
    Plug plug(Behind::kEnds);
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(run_behind(Behind::kEnds, [&ran, i] { ran.push_back(i); }));
    EXPECT_EQ(waiting_behind(Behind::kEnds), 1001u);
    EXPECT_TRUE(working_behind());
  }
  wait_behind(Behind::kEnds);
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
  EXPECT_EQ(waiting_behind(Behind::kEnds), 0u);
}

cpu_set_t processors_of_this_thread() {
  cpu_set_t own;
  EXPECT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
  return own;
}

TEST(DetachedThread, RunsWhereTheProcessMay) {
  const cpu_set_t all = processors_of_this_thread();
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  std::promise<cpu_set_t> found;
  std::thread bound([&] {
    ASSERT_TRUE(run_on(pthread_self(), {first}).ok());
    EXPECT_TRUE(start_detached([&found] { found.set_value(processors_of_this_thread()); }));
  });
  const cpu_set_t own = found.get_future().get();
  bound.join();
  EXPECT_TRUE(CPU_EQUAL(&own, &all));
}

TEST(HelperThread, TakesSixtyFourJobsForMemory) {
  Plug plug(Behind::kMemory);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(run_behind(Behind::kMemory, [] {}));
  EXPECT_FALSE(run_behind(Behind::kMemory, [] {}));
  plug.release();
  wait_behind(Behind::kMemory);
  EXPECT_TRUE(run_behind(Behind::kMemory, [] {}));
  wait_behind(Behind::kMemory);
}

// A connection whose end waits for its peer holds up no memory.
TEST(HelperThread, EachKindHasAThreadOfItsOwn) {
  Plug plug(Behind::kEnds);
  std::atomic<bool> ran{false};
  ASSERT_TRUE(run_behind(Behind::kMemory, [&ran] { ran = true; }));
  wait_behind(Behind::kMemory);
  EXPECT_TRUE(ran);
}

TEST(HelperThread, WaitsUntilSoManyAreLeftOrUntilTheDeadline) {
  Plug plug(Behind::kEnds);
  ASSERT_TRUE(run_behind(Behind::kEnds, [] {}));
  wait_behind(Behind::kEnds, 2);
  wait_behind(Behind::kEnds, 1, now_ns() + kMillisecond);
  EXPECT_EQ(waiting_behind(Behind::kEnds), 2u);
  plug.release();
  wait_behind(Behind::kEnds, 1);
  EXPECT_LE(waiting_behind(Behind::kEnds), 1u);
  wait_behind(Behind::kEnds);
}

// What a job holds ends before wait_behind() returns, and may wait for jobs itself.
TEST(HelperThread, AJobMayWait) {
  const auto held = std::make_shared<int>(0);
  ASSERT_TRUE(run_behind(Behind::kEnds, [held] { wait_behind(Behind::kEnds); }));
  wait_behind(Behind::kEnds);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(HelperThread, AForkedChildHasJobsOfItsOwn) {
  Plug plug(Behind::kEnds);
  const pid_t child = fork();
  if (child == 0) {
    bool ran = false;
    const bool taken = waiting_behind(Behind::kEnds) == 0 && run_behind(Behind::kEnds, [&ran] { ran = true; });
    wait_behind(Behind::kEnds);
    _exit(taken && ran ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rrpc
