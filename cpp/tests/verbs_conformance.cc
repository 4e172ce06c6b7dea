// The conformance suite on real verbs.
#include "conformance.h"
#include "conformance_connect.h"
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

INSTANTIATE_TEST_SUITE_P(Verbs, ConformanceTest, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, TrespassTest, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
