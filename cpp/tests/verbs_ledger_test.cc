// What the verbs provider knows of its queues. The devices themselves are tested in the virtual machine.
#include <gtest/gtest.h>

#include <vector>

#include "provider/verbs/receive_ledger.h"
#include "provider/verbs/send_ledger.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {
namespace {

SendEntry user(uint64_t wr_id, bool signalled = true) { return {.wr_id = wr_id, .signalled = signalled}; }
SendEntry bind(uint64_t key) { return {.wr_id = key, .kind = SendEntry::Kind::kBind, .signalled = false}; }

std::vector<uint64_t> take(SendLedger& ledger) {
  std::vector<uint64_t> taken;
  for (; ledger.front_done() != nullptr; ledger.pop()) taken.push_back(ledger.front_done()->wr_id);
  return taken;
}

using Ids = std::vector<uint64_t>;

TEST(SendLedger, ACompletionMeansThatTheUnsignalledBeforeItAreDone) {
  SendLedger ledger(8);
  ledger.push(user(1, false));
  ledger.push(bind(77));
  const uint64_t signalled = ledger.push(user(2));
  const uint64_t last = ledger.push(user(3));
  EXPECT_EQ(ledger.user_count(), 3u);
  EXPECT_EQ(ledger.internal_count(), 1u);
  EXPECT_EQ(ledger.complete(signalled, WcStatus::kSuccess).wr_id, 2u);
  EXPECT_FALSE(ledger.all_done());
  EXPECT_EQ(take(ledger), (Ids{1, 77, 2}));
  EXPECT_EQ(ledger.user_count(), 1u);
  EXPECT_EQ(ledger.internal_count(), 0u);
  ledger.complete(last, WcStatus::kFlushed);
  EXPECT_TRUE(ledger.all_done());
  EXPECT_EQ(ledger.front_done()->status, WcStatus::kFlushed);
  EXPECT_EQ(take(ledger), Ids{3});
  EXPECT_TRUE(ledger.empty());
}

// As over iWARP, where a send is done once TCP has it and a READ before it once the answer is there.
TEST(SendLedger, ASendThatOvertakesAReadIsToldAfterIt) {
  SendLedger ledger(8);
  ledger.push(user(1, false));
  const uint64_t read = ledger.push(user(2));
  ledger.push(user(3, false));
  const uint64_t send = ledger.push(user(4));
  ledger.complete(send, WcStatus::kSuccess);
  EXPECT_EQ(take(ledger), Ids{1});
  EXPECT_FALSE(ledger.all_done());
  ledger.complete(read, WcStatus::kRemoteAccess);
  EXPECT_TRUE(ledger.all_done());
  EXPECT_EQ(ledger.front_done()->status, WcStatus::kRemoteAccess);
  EXPECT_EQ(take(ledger), (Ids{2, 3, 4}));
}

TEST(SendLedger, WhatTheDeviceNeverTellsOfIsFlushed) {
  SendLedger ledger(4);
  ledger.push(user(1, false));
  const uint64_t second = ledger.push(user(2));
  ledger.push(user(3));
  ledger.complete(second, WcStatus::kSuccess);
  ledger.flush();
  EXPECT_TRUE(ledger.all_done());
  ledger.pop();
  EXPECT_EQ(ledger.front_done()->status, WcStatus::kSuccess);
  ledger.pop();
  EXPECT_EQ(ledger.front_done()->status, WcStatus::kFlushed);
}

TEST(SendLedger, GoesRoundManyTimes) {
  SendLedger ledger(5);
  uint64_t next = 0;
  for (size_t round = 0; round < 1000; ++round) {
    uint64_t sequence = 0;
    for (size_t i = 0; i < 1 + round % 5; ++i) sequence = ledger.push(user(next++, false));
    EXPECT_EQ(ledger.complete(sequence, WcStatus::kSuccess).wr_id, next - 1);
    EXPECT_EQ(take(ledger).size(), 1 + round % 5);
    EXPECT_TRUE(ledger.empty() && ledger.all_done());
    EXPECT_EQ(ledger.user_count(), 0u);
  }
}

TEST(SendLedger, WhatTheDeviceRefusedIsForgotten) {
  SendLedger ledger(8);
  const uint64_t first = ledger.push(user(1));
  const uint64_t refused = ledger.end();
  ledger.push(user(2));
  ledger.push(bind(3));
  ledger.drop_newest(refused);
  EXPECT_EQ(ledger.user_count(), 1u);
  EXPECT_EQ(ledger.internal_count(), 0u);
  EXPECT_EQ(ledger.push(user(4)), refused);
  ledger.complete(first, WcStatus::kSuccess);
  ledger.complete(refused, WcStatus::kSuccess);
  EXPECT_EQ(take(ledger), (Ids{1, 4}));
  EXPECT_TRUE(ledger.empty() && ledger.all_done());
}

TEST(SendLedgerDeathTest, AnOverfullLedgerOrAStrangeCompletionEndsTheProcess) {
  SendLedger ledger(2);
  ledger.push(user(1));
  ledger.push(user(2));
  EXPECT_DEATH(ledger.push(user(3)), "full");
  EXPECT_DEATH(ledger.complete(2, WcStatus::kSuccess), "outstanding");
}

PostedReceive receive(uint64_t wr_id) { return {.wr_id = wr_id, .length_bytes = 64}; }

TEST(ReceiveLedger, GivesBackInOrder) {
  ReceiveLedger ledger(3);
  uint64_t next = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    while (!ledger.full()) ledger.push(receive(next++));
    ledger.given(ledger.waiting_count());
    EXPECT_FALSE(ledger.empty());
    EXPECT_EQ(ledger.pop(), i);
  }
  ReceiveLedger fresh(2);
  fresh.push(receive(7));
  fresh.push(receive(8));
  EXPECT_TRUE(fresh.full());
  EXPECT_EQ(fresh.pop(), 7u);
  fresh.push(receive(9));
  EXPECT_EQ(fresh.pop(), 8u);
  EXPECT_EQ(fresh.pop(), 9u);
  EXPECT_TRUE(fresh.empty());
  EXPECT_EQ(fresh.waiting_count(), 0u);
}

TEST(ReceiveLedger, AReceiveComesBackToItsPlaceAndWaitsForTheDevice) {
  ReceiveLedger ledger(4);
  for (uint64_t i = 0; i < 4; ++i) ledger.push(receive(i));
  ledger.given(4);
  EXPECT_FALSE(ledger.push_again(0)) << "it hasn't completed";
  EXPECT_EQ(ledger.pop(), 0u);
  EXPECT_EQ(ledger.pop(), 1u);
  EXPECT_FALSE(ledger.push_again(1)) << "it isn't its turn";
  EXPECT_TRUE(ledger.push_again(0));
  EXPECT_TRUE(ledger.push_again(1));
  ASSERT_EQ(ledger.waiting_count(), 2u);
  EXPECT_EQ(ledger.waiting(1).wr_id, 1u);
  EXPECT_EQ(ledger.waiting(1).length_bytes, 64u);
  ledger.given(1);
  EXPECT_EQ(ledger.waiting(0).wr_id, 1u);
  EXPECT_EQ(ledger.drop_newest(), 1u);
  EXPECT_EQ(ledger.room(), 1u);
  ReceiveLedger none(0);
  EXPECT_FALSE(none.push_again(0)) << "its receives are a shared queue's";
}

TEST(SendLedger, OfAMessageOnlyACompletionThatWasAskedForIsTold) {
  SendEntry message{.wr_id = 1, .kind = SendEntry::Kind::kMessage, .wanted = false, .status = WcStatus::kFlushed};
  EXPECT_FALSE(message.to_be_told());
  message.wanted = true;
  EXPECT_TRUE(message.to_be_told());
  SendLedger ledger(2);
  ledger.push(message);
  EXPECT_EQ(ledger.user_count(), 1u) << "it takes a place";
}

TEST(WorkIds, TellTheQueue) {
  EXPECT_TRUE(is_send(send_id(0)));
  EXPECT_FALSE(is_send(receive_id(0)));
  EXPECT_EQ(sequence_of(send_id(123456789)), 123456789u);
  EXPECT_EQ(sequence_of(receive_id(123456789)), 123456789u);
}

}  // namespace
}  // namespace rrpc::provider::verbs
