// Chains of requests of which the adapter refuses some: each request is told once, and those that the adapter has by
// it.
#include "conformance.h"
#include "provider/verbs/posted_requests.h"
#include "verbs_under_test.h"

namespace rrpc::provider::conformance {
namespace {

constexpr uint64_t kCount = 4;

class VerbsRefusedTest : public ConformanceTest {
 protected:
  // The last of them gives the adapter all.
  void post_chain() {
    const Sge sge = buffer(client_, 64, 3).sge();
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_TRUE(post(client_, {.wr_id = i, .sges = {&sge, 1}, .more = i + 1 < kCount}).ok());
  }
  void expect_each_once() {
    ASSERT_TRUE(wait_for([&] { return client_.dead() && client_.completions.size() >= kCount; }));
    ASSERT_TRUE(wait_for([&] { return !client_.cq->lingering(); })) << "the device gives back what it has";
    ASSERT_EQ(client_.completions.size(), kCount);
    for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(client_.completions[i].wr_id, i);
  }
};

TEST_P(VerbsRefusedTest, WhatTheAdapterTookIsToldByIt) {
  connect({}, {}, kCount);
  verbs::PostedRequests requests;
  verbs::PostedRequests::refuse_after(2);
  post_chain();
  expect_each_once();
  for (uint64_t i = 2; i < kCount; ++i) EXPECT_EQ(client_.status(i), WcStatus::kFlushed);
  EXPECT_NE(client_.qp->error().message().find("posting to the send queue"), std::string::npos)
      << client_.qp->error().to_string();
}

TEST_P(VerbsRefusedTest, WhatSoftIwarpTookAllTheSameIsToldByIt) {
  if (GetParam().name != "siw") GTEST_SKIP() << "a way of Soft-iWARP's library";
  connect({}, {}, kCount);
  verbs::PostedRequests requests;
  verbs::PostedRequests::take_and_complain();
  post_chain();
  expect_each_once();
  EXPECT_TRUE(wait_for([&] { return server_.completions.size() >= kCount; })) << "they were sent";
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsRefusedTest, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
