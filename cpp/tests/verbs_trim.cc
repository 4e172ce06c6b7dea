// The pool is trimmed under load on real verbs: every byte of every call is right. An adapter keeps the pages that it
// was given, so a page that went back to the system under a live registration shows as other bytes.
#include <thread>

#include "driver_pair.h"
#include "verbs_under_test.h"

namespace rrpc::driver::testing {
namespace {

using provider::conformance::from_environment;
using provider::conformance::ProviderFactory;
using provider::conformance::verbs_cases;

class VerbsTrimTest : public ::testing::TestWithParam<ProviderFactory> {
 protected:
  static std::string address() {
    const std::string name = GetParam().name;
    if (name == "siw") return "verbs://" + from_environment("RRPC_VERBS_SIW", "10.9.1.1") + ":0";
    return (name == "rxe" ? "verbs://" : "verbs+tcp://") + from_environment("RRPC_VERBS_RXE", "10.9.0.1") + ":0";
  }
};

struct BlockHold final : endpoint::Hold {
  explicit BlockHold(endpoint::PoolBlock b) : block(std::move(b)) {}
  endpoint::PoolBlock block;
};

endpoint::Buffer pool_buffer(const std::vector<std::byte>& bytes) {
  auto hold = std::make_shared<BlockHold>(endpoint::Pool::process().allocate(bytes.size()).value());
  std::ranges::copy(bytes, hold->block.data());
  endpoint::Buffer buffer;
  buffer.data = hold->block.data();
  buffer.length_bytes = bytes.size();
  buffer.hold = std::move(hold);
  return buffer;
}

// Ordinary and pool memory there and back, fresh after each call, so that trims always find something.
void call_and_compare(Client& client, uint64_t seed) {
  for (const size_t length_bytes : {300'000u, 20'000u, 1'000'000u}) {
    const std::vector<std::byte> ordinary = pattern(length_bytes, ++seed);
    const std::vector<std::byte> pooled = pattern(length_bytes + 4096, ++seed);
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(owning_buffer(ordinary));
    buffers.push_back(pool_buffer(pooled));
    TestCall call(client, "echo", "x", kNever, std::move(buffers));
    ASSERT_TRUE(call.wait(in_ms(300'000)).ok()) << (*call).status().to_string();
    ASSERT_EQ((*call).blocks().size(), 2u);
    const auto same = [&](size_t index, const std::vector<std::byte>& sent) {
      const endpoint::ReceivedBlock& block = (*call).blocks()[index];
      return std::ranges::equal(Bytes(block.data(), block.size()), sent);
    };
    ASSERT_TRUE(same(0, ordinary)) << "ordinary memory, " << length_bytes << " bytes";
    ASSERT_TRUE(same(1, pooled)) << "pool memory, " << length_bytes << " bytes";
  }
}

TEST_P(VerbsTrimTest, EveryByteIsRightWhileThePoolIsTrimmed) {
  constexpr int kRounds = 6;
  TestServer server(std::in_place, address(), 2);
  std::atomic<int> callers{2};
  std::atomic<size_t> trimmed_bytes{0};
  std::vector<std::thread> threads;
  for (uint64_t caller = 0; caller < 2; ++caller)
    threads.emplace_back([&, caller] {
      const auto client = connect_to(server.address());
      for (uint64_t round = 0; client && round < kRounds && !HasFatalFailure(); ++round)
        call_and_compare(*client, caller * 1000 + round * 10);
      --callers;
    });
  for (; callers > 0; sleep_ms(5)) trimmed_bytes += endpoint::Pool::process().trim();
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(trimmed_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsTrimTest, ::testing::ValuesIn(verbs_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace rrpc::driver::testing
