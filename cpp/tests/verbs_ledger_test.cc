// What the verbs provider knows of its queues. The devices themselves are tested in the virtual machine.
#include <gtest/gtest.h>

#include <vector>

#include "provider/verbs/receive_ledger.h"
#include "provider/verbs/send_ledger.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {
namespace {

SendEntry user(uint64_t wr_id, bool signalled = true) { return {.wr_id = wr_id, .signalled = signalled}; }
SendEntry bind(uint64_t key) { return {.wr_id = key, .kind = SendEntry::Kind::kBind}; }

TEST(SendLedger, ACompletionRetiresWhatWasPostedBefore) {
  SendLedger ledger(8);
  ledger.push(user(1, false));
  ledger.push(bind(77));
  const uint64_t signalled = ledger.push(user(2));
  const uint64_t last = ledger.push(user(3));
  EXPECT_EQ(ledger.user_count(), 3u);
  EXPECT_EQ(ledger.internal_count(), 1u);
  std::vector<uint64_t> retired;
  const auto note = [&](const SendEntry& entry) { retired.push_back(entry.wr_id); };
  EXPECT_EQ(ledger.complete(signalled, note).wr_id, 2u);
  EXPECT_EQ(retired, (std::vector<uint64_t>{1, 77}));
  EXPECT_EQ(ledger.user_count(), 1u);
  EXPECT_EQ(ledger.internal_count(), 0u);
  EXPECT_FALSE(ledger.outstanding(signalled));
  EXPECT_EQ(ledger.complete(last, note).wr_id, 3u);
  EXPECT_EQ(retired.size(), 2u);
  EXPECT_TRUE(ledger.empty());
}

TEST(SendLedger, GoesRoundManyTimes) {
  SendLedger ledger(5);
  uint64_t next = 0;
  for (int round = 0; round < 1000; ++round) {
    uint64_t sequence = 0;
    for (int i = 0; i < 1 + round % 5; ++i) sequence = ledger.push(user(next++, false));
    EXPECT_EQ(ledger.complete(sequence, [](const SendEntry&) {}).wr_id, next - 1);
    EXPECT_TRUE(ledger.empty());
    EXPECT_EQ(ledger.user_count(), 0u);
  }
}

TEST(SendLedger, WhatTheDeviceRefusedIsForgotten) {
  SendLedger ledger(8);
  ledger.push(user(1));
  const uint64_t refused = ledger.end();
  ledger.push(user(2));
  ledger.push(bind(3));
  ledger.drop_newest(refused);
  EXPECT_EQ(ledger.user_count(), 1u);
  EXPECT_EQ(ledger.internal_count(), 0u);
  EXPECT_EQ(ledger.push(user(4)), refused);
  EXPECT_EQ(ledger.pop().wr_id, 1u);
  EXPECT_EQ(ledger.pop().wr_id, 4u);
  EXPECT_TRUE(ledger.empty());
}

TEST(SendLedgerDeathTest, AnOverfullLedgerOrAStrangeCompletionEndsTheProcess) {
  SendLedger ledger(2);
  ledger.push(user(1));
  ledger.push(user(2));
  EXPECT_DEATH(ledger.push(user(3)), "full");
  EXPECT_DEATH((void)ledger.complete(2, [](const SendEntry&) {}), "outstanding");
}

TEST(ReceiveLedger, GivesBackInOrder) {
  ReceiveLedger ledger(3);
  for (uint64_t i = 0; i < 100; ++i) {
    while (!ledger.full()) ledger.push(i * 10 + ledger.end());
    EXPECT_FALSE(ledger.empty());
    (void)ledger.pop();
  }
  ReceiveLedger fresh(2);
  fresh.push(7);
  fresh.push(8);
  EXPECT_TRUE(fresh.full());
  EXPECT_EQ(fresh.pop(), 7u);
  fresh.push(9);
  EXPECT_EQ(fresh.pop(), 8u);
  EXPECT_EQ(fresh.pop(), 9u);
  EXPECT_TRUE(fresh.empty());
}

TEST(WorkIds, TellTheQueue) {
  EXPECT_TRUE(is_send(send_id(0)));
  EXPECT_FALSE(is_send(receive_id(0)));
  EXPECT_EQ(sequence_of(send_id(123456789)), 123456789u);
  EXPECT_EQ(sequence_of(receive_id(123456789)), 123456789u);
}

}  // namespace
}  // namespace rrpc::provider::verbs
