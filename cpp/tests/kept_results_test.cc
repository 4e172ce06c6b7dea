// Results that a client has read, and whose server hasn't been woken to hear of it.
#include <array>

#include "driver_pair.h"
#include "endpoint/counters.h"

namespace rrpc::driver::testing {
namespace {

class KeptResults : public ::testing::TestWithParam<PollMode> {
 protected:
  static Options options() {
    Options options;
    options.poll = GetParam();
    return options;
  }
};

TEST_P(KeptResults, AreLetGoThoughNothingFollows) {
  TestServer server("shm", 2, options());
  const auto client = connect_to(server.address(), options());
  const auto exposed = endpoint::total(&endpoint::Counters::exposures_live);
  const auto bytes = pattern(1'000'000, 1);
  std::vector<endpoint::Buffer> buffers;
  buffers.push_back(owning_buffer(bytes));
  TestCall call(*client, "echo", "x", kNever, std::move(buffers));
  ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
  EXPECT_TRUE(eventually([&] { return endpoint::total(&endpoint::Counters::exposures_live) <= exposed; }, 5'000));
}

TEST_P(KeptResults, MakeRoomForTheNext) {
  constexpr size_t kLimit = 16 << 20;
  const std::array results{std::vector<std::byte>(kLimit / 8), std::vector<std::byte>(kLimit - kLimit / 16)};
  Options limited = options();
  limited.session.exposed_bytes_max = kLimit;
  TestServer without_workers("shm", 0, limited);
  Server& server = without_workers.server();
  const auto client = connect_to(without_workers.address(), options());
  std::array calls{TestCall(*client, "m", "first"), TestCall(*client, "m", "second")};
  std::vector<uint64_t> handles;
  while (handles.size() < calls.size()) {
    Work work;
    ASSERT_EQ(server.next(work, patiently_ms(10'000), kUninterrupted), NextResult::kWork);
    handles.push_back(work.handle);
  }
  std::thread poller([&server] {
    Work none;
    while (server.next(none, kNever, kUninterrupted) != NextResult::kEnded) {
    }
  });
  for (size_t i = 0; i < calls.size(); ++i) {
    rpc::Reply reply;
    reply.buffers.push_back(owning_buffer(results.at(i)));
    EXPECT_TRUE(server.reply(handles[i], std::move(reply)).ok());
    EXPECT_TRUE(calls.at(i).wait().ok()) << (*calls.at(i)).status().to_string();
  }
  server.stop();
  poller.join();
}

INSTANTIATE_TEST_SUITE_P(All, KeptResults, ::testing::Values(PollMode::kAdaptive, PollMode::kEvent),
                         [](const auto& given) { return given.param == PollMode::kEvent ? "event" : "adaptive"; });

}  // namespace
}  // namespace rrpc::driver::testing
