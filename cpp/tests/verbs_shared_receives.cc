// Connections that end in every way while messages are on their way to a shared receive queue: no receive is lost.
#include <algorithm>

#include "verbs_under_test.h"

namespace rrpc::provider::conformance {
namespace {

constexpr uint32_t kDepth = 64;
constexpr uint32_t kSlotBytes = 256;
constexpr int kDisconnects = 1000;

class VerbsSharedReceives : public ConformanceTest {
 protected:
  Status create() {
    RRPC_ASSIGN_OR_RETURN(queue_, listener_->create_shared_receive_queue(kDepth));
    slots_ = &buffer(server_, size_t{kDepth} * kSlotBytes);
    message_ = &buffer(client_, 32);
    for (uint64_t slot = 0; slot < kDepth; ++slot) RRPC_RETURN_IF_ERROR(post_slot(slot));
    return {};
  }
  void TearDown() override {
    ConformanceTest::TearDown();
    queue_.reset();
  }
  Status post_slot(uint64_t slot) {
    Sge sge = slots_->sge();
    sge.address += slot * kSlotBytes;
    sge.length_bytes = kSlotBytes;
    const ReceiveRequest request{.wr_id = slot, .sge = sge};
    return queue_->post({&request, 1});
  }
  // As an owner does: what has completed is posted again.
  void post_again() {
    for (const Completion& completion : server_.completions) {
      if (completion.opcode != Opcode::kReceive) continue;
      EXPECT_TRUE(post_slot(completion.wr_id).ok()) << "slot " << completion.wr_id << " came twice";
    }
    server_.completions.clear();
    client_.completions.clear();
  }
  void send(uint64_t count) {
    for (uint64_t i = 0; i < count && client_.qp->state() == QueuePairState::kConnected; ++i)
      (void)post_send(client_, i, message_->sge());
  }
  // Every other time the owner doesn't wait for what the queue pair has to give back.
  void end(int round) {
    const bool by_client = round % 3 != 1;
    const bool by_server = round % 3 != 0;
    if (by_client) client_.qp->disconnect("enough");
    if (by_server) server_.qp->disconnect("enough");
    if (round % 2 == 0) {
      EXPECT_TRUE(wait_for([&] { return server_.dead() && !server_.cq->lingering(); }));
      step();
    }
    post_again();
    server_.qp.reset();
    client_.qp.reset();
  }

  std::unique_ptr<SharedReceiveQueue> queue_;
  Buffer* slots_ = nullptr;
  Buffer* message_ = nullptr;
};

TEST_P(VerbsSharedReceives, AThousandDisconnectsLoseNoReceive) {
  const Status made = create();
  if (made.code() == StatusCode::kFailedPrecondition) GTEST_SKIP() << made.to_string();
  ASSERT_TRUE(made.ok()) << made.to_string();
  const QueuePairConfig drawing{.shared_receives = queue_.get()};
  for (int round = 0; round < kDisconnects; ++round) {
    ASSERT_NO_FATAL_FAILURE(connect({}, drawing)) << "round " << round;
    send(static_cast<uint64_t>(round % 7));
    end(round);
  }
  // The adapter has as many as were posted: that many messages find one, without any posted again.
  connect({}, drawing);
  send(kDepth);
  const auto received = [&] {
    return std::ranges::count_if(server_.completions, [](const Completion& completion) {
      return completion.opcode == Opcode::kReceive && completion.status == WcStatus::kSuccess;
    });
  };
  EXPECT_TRUE(wait_for([&] { return received() == kDepth || client_.dead(); })) << received();
  EXPECT_EQ(received(), kDepth) << client_.qp->error().to_string();
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsSharedReceives, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
