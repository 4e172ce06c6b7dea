// Messages that close a key of their receiver's.
#pragma once

#include <set>

#include "conformance.h"

namespace rrpc::provider::conformance {

// As a reply closes what its call has opened. Without memory windows there is no such thing.
TEST_P(ConformanceTest, AMessageClosesAKeyOfItsReceiver) {
  connect({}, {}, 1);
  ASSERT_EQ(client_.qp->limits().invalidates, server_.qp->exposure_kind() == ExposureKind::kWindow);
  if (!client_.qp->limits().invalidates) return;
  Buffer& memory = buffer(server_, 4096, 3);
  Buffer& own = buffer(client_, 4096);
  const uint32_t closed = expose(server_, memory, 0, 2048, kRemoteRead);
  const uint32_t other = expose(server_, memory, 2048, 2048, kRemoteRead);
  const auto read = [&](uint64_t wr_id, size_t offset, uint32_t rkey) {
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, wr_id, own.sge(0, 2048), memory.bytes.data() + offset, rkey).ok());
    ASSERT_TRUE(wait_done(client_, wr_id));
  };
  read(1, 0, closed);
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  ASSERT_TRUE(post_invalidating(client_, 2, own.sge(0, 16), closed).ok());
  ASSERT_TRUE(wait_done(server_, 1000));
  EXPECT_EQ(server_.status(1000), WcStatus::kSuccess);
  EXPECT_TRUE(server_.qp->revoke(closed)) << "nothing is left to be done";
  EXPECT_FALSE(server_.qp->revoking(closed));
  EXPECT_TRUE(server_.qp->revoke(closed)) << "again";
  read(3, 2048, other);
  EXPECT_EQ(client_.status(3), WcStatus::kSuccess);
  read(4, 0, closed);
  expect_refused(client_, 4);
}

TEST_P(ConformanceTest, AWindowThatAMessageClosedIsOpenedAgainWithAnotherKey) {
  constexpr uint64_t kTimes = 600;  // beyond the 255 keys of a window
  connect();
  if (!client_.qp->limits().invalidates) return;
  Buffer& memory = buffer(server_, 4096, 3);
  Buffer& own = buffer(client_, 4096);
  std::set<uint32_t> keys;
  for (uint64_t i = 0; i < kTimes; ++i) {
    const uint32_t key = expose(server_, memory, 0, 4096, kRemoteRead);
    EXPECT_TRUE(keys.insert(key).second);
    post_receive(server_, 1000 + i, memory.sge());
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 2 * i, own.sge(), memory.bytes.data(), key).ok());
    ASSERT_TRUE(wait_done(client_, 2 * i));
    ASSERT_TRUE(post_invalidating(client_, 2 * i + 1, own.sge(0, 16), key).ok());
    ASSERT_TRUE(wait_done(server_, 1000 + i) && wait_done(client_, 2 * i + 1));
    ASSERT_EQ(client_.status(2 * i), WcStatus::kSuccess);
    ASSERT_TRUE(server_.qp->revoke(key));
  }
}

TEST_P(ConformanceTest, OnlyASendClosesAKeyAndOnlyWhereThatIsPossible) {
  connect({}, {}, 1);
  if (client_.qp->exposure_kind() == ExposureKind::kChecked) return;  // who posts looks at the limits first
  Buffer& memory = buffer(server_, 64, 3);
  const uint32_t rkey = expose(server_, memory, 0, 64, kRemoteRead);
  const Sge sge = buffer(client_, 64).sge();
  const WorkRequest read{.wr_id = 1,
                         .opcode = Opcode::kRead,
                         .sges = {&sge, 1},
                         .remote_address = reinterpret_cast<uint64_t>(memory.bytes.data()),
                         .rkey = rkey,
                         .invalidate_rkey = rkey};
  EXPECT_EQ(post(client_, read).code(), StatusCode::kInvalidArgument);
  if (!client_.qp->limits().invalidates) {
    EXPECT_EQ(post_invalidating(client_, 2, sge, rkey).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(connected(client_));
}

}  // namespace rrpc::provider::conformance
