// Connections that end in every way while messages are on their way to a shared receive queue: no receive is lost.
#include <algorithm>
#include <array>

#include "verbs_under_test.h"

namespace rrpc::provider::conformance {
namespace {

constexpr uint32_t kDepth = 64;
constexpr uint32_t kManyReceives = 2048;
constexpr uint32_t kSlotBytes = 256;
constexpr int kDisconnects = 1000;

class VerbsSharedReceives : public ConformanceTest {
 protected:
  Status create(uint32_t depth = kDepth) {
    RRPC_ASSIGN_OR_RETURN(queue_, listener_->create_shared_receive_queue(depth));
    slots_ = &buffer(server_, size_t{depth} * kSlotBytes);
    message_ = &buffer(client_, 32);
    for (uint64_t slot = 0; slot < depth; ++slot) RRPC_RETURN_IF_ERROR(post_slot(slot));
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
  void poll_client() {
    std::array<Completion, 16> out;
    const size_t count = client_.cq->poll(out);
    client_.completions.insert(client_.completions.end(), out.begin(), out.begin() + static_cast<ptrdiff_t>(count));
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

// The server doesn't poll meanwhile. Its queue has room for what it granted, and for its own sends.
TEST_P(VerbsSharedReceives, APeerThatSendsMoreThanItWasGrantedEndsItsOwnConnectionAlone) {
  const Status made = create(kManyReceives);
  if (made.code() == StatusCode::kFailedPrecondition) GTEST_SKIP() << made.to_string();
  ASSERT_TRUE(made.ok()) << made.to_string();
  const QueuePairConfig granted{.receive_depth = 16, .shared_receives = queue_.get()};
  ASSERT_NO_FATAL_FAILURE(connect({}, granted));
  const std::unique_ptr<QueuePair> bystander = std::move(client_.qp);
  const std::unique_ptr<QueuePair> bystander_at_server = std::move(server_.qp);
  ASSERT_NO_FATAL_FAILURE(connect({}, granted));
  for (uint32_t sent = 0; sent < kManyReceives / 2 && !client_.dead();) {
    if (post_send(client_, sent, message_->sge()).ok()) ++sent;
    poll_client();
  }
  EXPECT_TRUE(wait_for([&] { return server_.dead() && !server_.cq->lingering(); }));
  EXPECT_TRUE(server_.qp->error().is_protocol_error()) << server_.qp->error().to_string();
  EXPECT_NE(server_.qp->error().message().find("more messages than it was granted"), std::string::npos)
      << server_.qp->error().to_string();
  EXPECT_TRUE(server_.qp->lost_receives());
  EXPECT_FALSE(bystander_at_server->lost_receives());
  server_.qp.reset();
  client_.qp.reset();
  server_.completions.clear();
  client_.completions.clear();
  EXPECT_EQ(bystander_at_server->state(), QueuePairState::kConnected) << bystander_at_server->error().to_string();
  const Sge sge = message_->sge();
  const WorkRequest request{.wr_id = 7, .sges = {&sge, 1}};
  ASSERT_TRUE(bystander->post_send({&request, 1}).ok());
  EXPECT_TRUE(wait_for([&] { return server_.completions.size() == 1 && client_.count(7) == 1; }));
  EXPECT_EQ(client_.status(7), WcStatus::kSuccess);
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsSharedReceives, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
