// Calls with arrays on real verbs, and what they post to the adapter.
#include "driver_pair.h"
#include "provider/verbs/posted_requests.h"
#include "verbs_under_test.h"

namespace rrpc::driver::testing {
namespace {

using provider::conformance::from_environment;
using provider::conformance::ProviderFactory;
using provider::conformance::verbs_cases;
using provider::verbs::PostedRequests;

// Takes calls, and answers each with its payload alone.
class Sink {
 public:
  explicit Sink(const std::string& address) : bound_(server_.listen(address)) {
    EXPECT_TRUE(bound_.ok()) << bound_.status().to_string();
    worker_ = std::thread([this] {
      Work work;
      while (true) {
        const NextResult next = server_.next(work, kNever, kUninterrupted);
        if (next == NextResult::kEnded) return;
        if (next != NextResult::kWork) continue;
        const rpc::ServerCallRef call = work.call;
        (void)server_.reply(std::exchange(work, Work()).handle, {.payload = call->payload()});
      }
    });
  }
  ~Sink() {
    server_.stop();
    worker_.join();
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  const std::string& address() const { return *bound_; }

 private:
  Server server_{Options()};
  Result<std::string> bound_;
  std::thread worker_;
};

class VerbsInvalidationTest : public ::testing::TestWithParam<ProviderFactory> {
 protected:
  static bool has_windows() { return GetParam().name != "siw"; }
  static std::string address() {
    if (!has_windows()) return "verbs://" + from_environment("RRPC_VERBS_SIW", "10.9.1.1") + ":0";
    return (GetParam().name == "rxe" ? "verbs://" : "verbs+tcp://") + from_environment("RRPC_VERBS_RXE", "10.9.0.1") +
           ":0";
  }
  static void call(Client& client, size_t array_count) {
    std::vector<endpoint::Buffer> arrays;
    for (size_t i = 0; i < array_count; ++i) arrays.push_back(owning_buffer(pattern(65536, i)));
    TestCall call(client, "take", "x", kNever, std::move(arrays));
    ASSERT_TRUE(call.wait().ok()) << (*call).status().to_string();
  }
};

TEST_P(VerbsInvalidationTest, ACallWithAnArrayPostsNoInvalidationOfItsOwn) {
  const Sink sink(address());
  const std::unique_ptr<Client> client = connect_to(sink.address());
  ASSERT_NE(client, nullptr);
  for (const int array_count : {0, 1, 3}) {
    SCOPED_TRACE(array_count);
    const PostedRequests posted;
    const int64_t before = endpoint::total(&endpoint::Counters::exposures_invalidated);
    call(*client, static_cast<size_t>(array_count));
    const int by_reply = has_windows() && array_count > 0 ? 1 : 0;
    EXPECT_EQ(posted.binds(), has_windows() ? array_count : 0);
    EXPECT_EQ(posted.sends_with_invalidate(), by_reply);
    EXPECT_EQ(posted.local_invalidations(), has_windows() ? array_count - by_reply : 0);
    EXPECT_EQ(posted.reads(), array_count);
    EXPECT_EQ(endpoint::total(&endpoint::Counters::exposures_invalidated) - before, by_reply);
    EXPECT_TRUE(eventually([] { return endpoint::total(&endpoint::Counters::exposures_live) == 0; }));
  }
}

// The reply may come while the client ends the connection.
TEST_P(VerbsInvalidationTest, AClientMayCloseWithACallUnderWay) {
  const Sink sink(address());
  for (int i = 0; i < 20; ++i) {
    const std::unique_ptr<Client> client = connect_to(sink.address());
    ASSERT_NE(client, nullptr);
    TestCall call(*client, "take", "x", kNever, {});
    std::vector<endpoint::Buffer> arrays;
    arrays.push_back(owning_buffer(pattern(65536, 1)));
    const TestCall under_way(*client, "take", "x", kNever, std::move(arrays));
    EXPECT_TRUE(under_way.started().ok());
    if (i % 2 == 0) {
      EXPECT_TRUE(call.wait().ok());
    }
    client->close();
  }
  EXPECT_TRUE(eventually([] { return endpoint::total(&endpoint::Counters::exposures_live) == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsInvalidationTest, ::testing::ValuesIn(verbs_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace rrpc::driver::testing
