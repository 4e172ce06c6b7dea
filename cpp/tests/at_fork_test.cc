// Handlers of forks are registered when the program is loaded, and none by a thread later: see base/at_fork.h.

#include <pthread.h>

#include <atomic>

#include "driver_pair.h"

namespace {
std::atomic<int> g_registered{0};
}

// In the C library's place.
extern "C" int pthread_atfork(void (*)(), void (*)(), void (*)()) noexcept { return ++g_registered, 0; }

namespace rrpc::driver::testing {
namespace {

class AtForkTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AtForkTest, ThreadsRegisterNothing) {
  const int when_loaded = g_registered;
  EXPECT_GT(when_loaded, 0);
  TestServer server(GetParam(), 1, {});
  auto client = connect_to(server.address(), {});
  TestCall call(*client, "echo", std::string(1 << 20, 'x'));
  ASSERT_TRUE(call.wait().ok());
  EXPECT_EQ(g_registered, when_loaded);
}

INSTANTIATE_TEST_SUITE_P(Transports, AtForkTest, ::testing::Values("shm", "tcp"));

}  // namespace
}  // namespace rrpc::driver::testing
