// How requests go to an adapter, with an adapter of the test's own that counts the calls and may refuse some.
#include "provider/verbs/posting.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <vector>

namespace rrpc::provider::verbs {
namespace {

struct Adapter {
  Adapter() {
    context.ops.post_recv = &take;
    context.ops.post_srq_recv = &take;
    queue_pair.context = shared_receives.context = &context;
    latest_ = this;
  }
  template <typename Queue>
  static int take(Queue*, ibv_recv_wr* request, ibv_recv_wr** refused) {
    ++latest_->calls;
    for (; request != nullptr; request = request->next) {
      if (latest_->taken.size() == latest_->room) {
        *refused = request;
        return ENOMEM;
      }
      latest_->taken.push_back(request->wr_id);
    }
    return 0;
  }
  static inline Adapter* latest_ = nullptr;
  ibv_context context{};
  ibv_qp queue_pair{};
  ibv_srq shared_receives{};
  size_t room = 16;
  int calls = 0;
  std::vector<uint64_t> taken;
};

std::array<ibv_recv_wr, 3> three() {
  std::array<ibv_recv_wr, 3> requests{};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].wr_id = i + 1;
    requests[i].next = &requests[0];  // of an earlier use
  }
  return requests;
}

TEST(Posting, SeveralReceivesAreOneCall) {
  Adapter adapter;
  auto requests = three();
  const PostedReceives posted = post_linked(&adapter.queue_pair, requests);
  EXPECT_EQ(posted.count, 3u);
  EXPECT_EQ(posted.error_number, 0);
  EXPECT_EQ(adapter.calls, 1);
  EXPECT_EQ(adapter.taken, (std::vector<uint64_t>{1, 2, 3}));
}

TEST(Posting, SeveralSharedReceivesAreOneCall) {
  Adapter adapter;
  auto requests = three();
  EXPECT_EQ(post_linked(&adapter.shared_receives, requests).count, 3u);
  EXPECT_EQ(adapter.calls, 1);
  EXPECT_EQ(adapter.taken, (std::vector<uint64_t>{1, 2, 3}));
}

TEST(Posting, WhatCameBeforeARefusedOneIsPosted) {
  Adapter adapter;
  adapter.room = 2;
  auto requests = three();
  const PostedReceives posted = post_linked(&adapter.queue_pair, requests);
  EXPECT_EQ(posted.count, 2u);
  EXPECT_EQ(posted.error_number, ENOMEM);
}

TEST(Posting, OneThatIsRefusedAloneIsNone) {
  Adapter adapter;
  adapter.room = 0;
  auto requests = three();
  EXPECT_EQ(post_linked(&adapter.queue_pair, std::span(requests).first(1)).count, 0u);
}

}  // namespace
}  // namespace rrpc::provider::verbs
