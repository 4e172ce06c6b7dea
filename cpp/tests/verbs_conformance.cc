// The conformance suite on real verbs.
#include <thread>

#include "conformance.h"
#include "conformance_connect.h"
#include "conformance_invalidation.h"
#include "conformance_memory.h"
#include "conformance_messages.h"
#include "verbs_under_test.h"

namespace rrpc::provider::conformance {

std::vector<ProviderFactory> verbs_cases() {
  const std::string wanted = "," + from_environment("RRPC_VERBS_CASES", "rxe,rxe_socket,siw") + ",";
  std::vector<ProviderFactory> cases;
  const auto add = [&](const char* name, VerbsCase which) {
    if (wanted.find(std::string(",") + name + ",") == std::string::npos) return;
    cases.push_back({name, [which] { return std::make_unique<VerbsUnderTest>(which); }});
  };
  add("rxe", VerbsCase::kRoce);
  add("rxe_socket", VerbsCase::kRoceBySocket);
  add("siw", VerbsCase::kIwarp);
  return cases;
}

namespace {

std::string factory_name(const ::testing::TestParamInfo<ProviderFactory>& info) { return info.param.name; }

class VerbsReleaseTest : public ConformanceTest {};

// By the thread that destroys connections, not by the one that polls until nothing lingers.
TEST_P(VerbsReleaseTest, AnEndedQueuePairGivesTheDeviceBackWhenItIsToldTo) {
  connect();
  EXPECT_FALSE(server_.qp->holds_device()) << "it is in use";
  client_.qp->disconnect("enough");
  EXPECT_TRUE(wait_for([&] { return client_.dead() && server_.dead(); }));
  EXPECT_TRUE(wait_for([&] { return !client_.cq->lingering() && !server_.cq->lingering(); }));
  for (const End* end : {&client_, &server_}) {
    EXPECT_TRUE(end->qp->holds_device()) << "a poll has given it back";
    std::thread([end] { end->qp->release_device(); }).join();
    EXPECT_FALSE(end->qp->holds_device());
  }
  step();
  EXPECT_FALSE(client_.cq->lingering() || server_.cq->lingering());
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsReleaseTest, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, ConformanceTest, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, TrespassTest, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
