// Small items that wait for each other to share a message: what goes out when, in which order, and what ends it.
#include "driver/item_pace.h"
#include "stream_pair.h"

namespace rrpc::rpc {
namespace {

struct Gathering : Pair {
  Gathering() : Pair(1000, 1 << 20) {}
  // Messages of the client since the last look.
  int64_t messages() {
    const int64_t now = world.client.session->endpoint().traffic().messages_sent.load();
    return now - std::exchange(seen_, now);
  }
  void gather(int count) {
    (void)messages();
    for (int i = 0; i < count; ++i) ASSERT_TRUE(send("item " + std::to_string(next_++), true));
  }
  void expect_all_in_order() {
    settle();
    const std::vector<Item> items = take_items(1000);
    ASSERT_EQ(items.size(), static_cast<size_t>(next_));
    for (int i = 0; i < next_; ++i)
      EXPECT_EQ(as_text(items[static_cast<size_t>(i)].payload()), "item " + std::to_string(i));
  }
  void poll() { world.client.session->progress(world.network.now()); }

 private:
  int next_ = 0;
  int64_t seen_ = 0;
};

TEST(StreamGather, OnePollSendsAllThatWaitsInOneMessage) {
  Gathering pair;
  pair.gather(20);
  EXPECT_EQ(pair.messages(), 0);
  pair.poll();
  EXPECT_EQ(pair.messages(), 1);
  pair.expect_all_in_order();
}

TEST(StreamGather, AnItemThatMayNotWaitTakesTheOthersAlong) {
  Gathering pair;
  pair.gather(2);
  ASSERT_TRUE(pair.send(5));
  EXPECT_EQ(pair.messages(), 1);
  pair.settle();
  EXPECT_EQ(pair.take(10), 3u);
}

TEST(StreamGather, TheNumberThatWaitsIsBounded) {
  Gathering pair;
  pair.gather(kGatheredMax - 1);
  EXPECT_EQ(pair.messages(), 0);
  pair.gather(1);
  EXPECT_EQ(pair.messages(), 1);
  pair.gather(2 * kGatheredMax);
  EXPECT_EQ(pair.messages(), 2);
  pair.expect_all_in_order();
}

TEST(StreamGather, AFullMessageGoesAtOnce) {
  Gathering pair;
  const size_t half = pair.world.client.session->endpoint().body_bytes_max() / 2;
  (void)pair.messages();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pair.send(half - 100, true));
  EXPECT_EQ(pair.messages(), 1) << "the last two have room beside each other";
  ASSERT_TRUE(pair.send(half - 100, true));
  EXPECT_EQ(pair.messages(), 1);
  ASSERT_TRUE(pair.send(2 * half, true)) << "longer than a message";
  EXPECT_EQ(pair.messages(), 2);
  pair.settle();
  EXPECT_EQ(pair.take(10), 6u);
}

TEST(StreamGather, ABufferKeepsItsPlaceAmongSmallItems) {
  Gathering pair;
  pair.gather(2);
  ASSERT_TRUE(pair.send_buffer(100'000));
  EXPECT_EQ(pair.messages(), 2) << "it doesn't wait, and nothing before it";
  ASSERT_TRUE(pair.send("behind", true));
  ASSERT_TRUE(pair.send(20'000, true));  // longer than a slot
  ASSERT_TRUE(pair.send("last", true));
  pair.poll();
  pair.settle();
  const std::vector<Item> items = pair.take_items(10);
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(as_text(items[1].payload()), "item 1");
  ASSERT_EQ(items[2].blocks().size(), 1u);
  EXPECT_EQ(items[2].blocks()[0].size(), 100'000u);
  EXPECT_EQ(as_text(items[3].payload()), "behind");
  EXPECT_EQ(items[4].payload().size(), 20'000u);
  EXPECT_EQ(as_text(items[5].payload()), "last");
}

TEST(StreamGather, TheEndAndAQuestionSendWhatWaits) {
  Gathering pair;
  Streams& streams = pair.world.client.session->streams();
  pair.gather(3);
  EXPECT_EQ(streams.ask_delivered(pair.call->stream()), 3u);
  EXPECT_EQ(pair.messages(), 2);
  pair.gather(3);
  streams.finish(pair.call->stream());
  EXPECT_EQ(pair.messages(), 2);
  pair.expect_all_in_order();
  EXPECT_TRUE(pair.requests.back()->stream()->exhausted());
}

TEST(StreamGather, AReplyFollowsTheItemsThatWait) {
  Pair pair(1000, 1 << 20);
  const ClientCallRef call = pair.start(kServerStreams);
  pair.settle();
  Session& server = *pair.world.server.session;
  OutgoingItem item{as_bytes("x")};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(server.streams().send(pair.requests.back()->stream(), item, true).value());
  const int64_t before = server.endpoint().traffic().messages_sent.load();
  server.server().reply(pair.requests.back(), {.payload = as_bytes("r")}, pair.world.network.now());
  EXPECT_EQ(server.endpoint().traffic().messages_sent.load() - before, 2) << "the reply waits for a poll";
  pair.settle();
  std::vector<Item> items;
  pair.world.client.session->streams().take(call->stream(), 10, items);
  EXPECT_EQ(items.size(), 3u);
  EXPECT_TRUE(call->done());
}

TEST(StreamGather, ACancelDropsWhatWaits) {
  Gathering pair;
  pair.gather(3);
  pair.poll();
  pair.gather(3);
  pair.world.client.session->client().cancel(pair.call, cancelled("by hand"));
  EXPECT_EQ(pair.messages(), 1) << "the cancel alone";
  OutgoingItem item{as_bytes("x")};
  EXPECT_FALSE(pair.world.client.session->streams().send(pair.call->stream(), item, true).ok());
  pair.settle();
  EXPECT_EQ(pair.messages(), 0) << "what waited goes after the cancel";
  EXPECT_TRUE(pair.requests.back()->cancelled());
  pair.call = pair.start(kClientStreams);
  pair.settle();
  ASSERT_TRUE(pair.send("of another call", true));
  pair.poll();
  pair.settle();
  const std::vector<Item> items = pair.take_items(10);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(as_text(items[0].payload()), "of another call");
}

TEST(StreamGather, AReplyAmidItemsThatWaitEndsTheCall) {
  Gathering pair;
  pair.gather(3);
  pair.world.server.session->server().reply(pair.requests.back(), {.payload = as_bytes("r")}, pair.world.network.now());
  pair.settle();
  EXPECT_TRUE(pair.call->done());
  EXPECT_TRUE(pair.call->status().ok());
  EXPECT_FALSE(pair.world.client.closed || pair.world.server.closed);
}

TEST(StreamGather, WhatWaitsCountsInTheWindow) {
  Pair pair(8, 1000);
  EXPECT_EQ(pair.send_all(10, true), 8u);
  EXPECT_FALSE(pair.world.server.closed) << pair.world.server.closed_with.to_string();
  EXPECT_EQ(pair.take(8), 8u);
  EXPECT_EQ(pair.send_all(300, true), 3u);
  EXPECT_FALSE(pair.world.server.closed) << pair.world.server.closed_with.to_string();
  EXPECT_EQ(pair.take(8), 3u);
}

TEST(StreamGather, WithoutCreditsNoMorePilesUpThanTheOwnWindow) {
  Pair pair(1 << 20, uint64_t{1} << 40);
  const size_t own = SessionOptions().stream_window_items;
  const size_t in_ring = size_t{64} * kGatheredMax;
  size_t count = 0;
  while (count < 10 * (own + in_ring) && pair.send(10, true)) ++count;
  EXPECT_GE(count, own);
  EXPECT_LE(count, own + in_ring);
  pair.settle();
  EXPECT_TRUE(pair.send(10)) << "credits came";
}

using driver::ItemPace;

struct Paced {
  // Sends an item so long after the last one. Returns whether it waits.
  bool send(TimeNs pause) {
    const bool waits = pace.may_wait();
    pace.sent(now += pause, waits);
    return waits;
  }
  // How many items go at once before one waits.
  int at_once() {
    int count = 0;
    while (count < 1000 && !send(kMicrosecond / 10)) ++count;
    return count;
  }
  ItemPace pace;
  TimeNs now = kSecond;
};

TEST(ItemPace, AnItemWaitsOnlyBehindOthersThatFollowedAtOnce) {
  Paced paced;
  paced.pace.resume(paced.now);
  for (int i = 0; i < ItemPace::kRowMin; ++i) EXPECT_FALSE(paced.send(kMicrosecond)) << "item " << i;
  EXPECT_TRUE(paced.send(kMicrosecond));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(paced.send(ItemPace::kSoon) && i > 0) << "its iterator takes its time";
}

TEST(ItemPace, NoItemWaitsLongForOthersThatFollow) {
  Paced paced;
  paced.pace.resume(paced.now);
  (void)paced.at_once();
  TimeNs waited = 0;
  while (waited <= ItemPace::kHeldFor && paced.send(10 * kMicrosecond)) waited += 10 * kMicrosecond;
  EXPECT_LE(waited, ItemPace::kHeldFor);
  EXPECT_TRUE(paced.send(10 * kMicrosecond)) << "others wait again";
}

TEST(ItemPace, TheLastItemsOfBurstsSoonGoAtOnce) {
  Paced paced;
  paced.pace.resume(paced.now);
  EXPECT_EQ(paced.at_once(), ItemPace::kRowMin);
  for (int expected = 2 * ItemPace::kRowMin; expected <= ItemPace::kRowMax; expected *= 2) {
    (void)paced.send(kSecond);
    EXPECT_EQ(paced.at_once(), expected);
  }
  for (int i = 0; i < ItemPace::kRowMax; ++i) (void)paced.send(kMicrosecond / 10);
  (void)paced.send(kSecond);
  EXPECT_EQ(paced.at_once(), 2 * ItemPace::kRowMin) << "so many items were no burst";
}

TEST(ItemPace, WhatGoesAtOnceThoughTheConnectionIsArmedCountsToo) {
  ItemPace pace;
  TimeNs now = kSecond;
  pace.resume(now);
  for (int i = 0; i < ItemPace::kRowMin; ++i) {
    EXPECT_FALSE(pace.may_wait()) << "item " << i;
    pace.sent(++now, false);
    pace.resume(now += kMillisecond);
  }
  EXPECT_TRUE(pace.may_wait());
}

TEST(ItemPace, AStallCountsThoughTheConnectionIsArmedByThen) {
  Paced paced;
  paced.pace.resume(paced.now);
  (void)paced.at_once();
  paced.pace.sent(paced.now += kSecond, false);
  EXPECT_FALSE(paced.pace.may_wait());
  paced.pace.resume(paced.now += kMillisecond);
  EXPECT_EQ(paced.at_once(), 2 * ItemPace::kRowMin);
}

TEST(ItemPace, AWaitForRoomIsNoStall) {
  Paced paced;
  paced.pace.resume(paced.now);
  (void)paced.at_once();
  paced.pace.resume(paced.now += kSecond);
  EXPECT_TRUE(paced.send(kMicrosecond));
}

}  // namespace
}  // namespace rrpc::rpc
