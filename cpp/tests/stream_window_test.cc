// The rule of the window, between two sessions: who may be ahead of whom, when that is told, and what it never stops.
#include "stream_pair.h"

namespace rrpc::rpc {
namespace {

TEST(StreamWindow, AsManyItemsAsTheWindowHasMayBeAhead) {
  Pair pair(8, 1 << 20);
  EXPECT_EQ(pair.send_all(10), 8u);
  EXPECT_EQ(pair.take(1), 1u);
  EXPECT_EQ(pair.send_all(10), 0u) << "less than a quarter isn't told";
  EXPECT_EQ(pair.take(1), 1u);
  EXPECT_EQ(pair.send_all(10), 2u);
  EXPECT_EQ(pair.take(100), 8u);
  EXPECT_EQ(pair.send_all(10), 8u);
}

TEST(StreamWindow, AsManyBytesAsTheWindowHasMayBeAhead) {
  Pair pair(1000, 1000);
  EXPECT_EQ(pair.send_all(300), 3u);
  EXPECT_TRUE(pair.send(100)) << "what has room goes";
  EXPECT_FALSE(pair.send(1));
  EXPECT_TRUE(pair.send(0)) << "an item without bytes needs none";
  pair.settle();
  EXPECT_EQ(pair.take(1), 1u);
  EXPECT_EQ(pair.send_all(300), 1u);
}

TEST(StreamWindow, BuffersCount) {
  Pair pair(1000, 10'000);
  EXPECT_TRUE(pair.send_buffer(6000));
  EXPECT_FALSE(pair.send_buffer(6000));
  pair.settle();
  EXPECT_EQ(pair.take(1), 1u);
  EXPECT_TRUE(pair.send_buffer(6000));
}

// Whatever an item's size, its sender isn't left waiting for room that there is: the receiver says so in time.
TEST(StreamWindow, AnItemOfAnySizeGoesOnceEnoughWasTaken) {
  for (const uint64_t bytes : {1u, 2u, 3u, 4u, 7u, 100u, 1000u}) {
    for (const uint32_t items : {1u, 2u, 3u, 5u, 100u}) {
      for (const size_t size : {size_t{1}, bytes / 2, bytes - bytes / 4, bytes, bytes + 1, bytes * 5}) {
        SCOPED_TRACE(std::to_string(items) + "," + std::to_string(bytes) + ": items of " + std::to_string(size));
        Pair pair(items, bytes);
        for (int i = 0; i < 10; ++i) {
          pair.send_all(1 + i % 3);
          while (pair.take(1) > 0) {
          }
          ASSERT_TRUE(pair.send(size)) << "with everything taken there is room for it";
          pair.settle();
        }
      }
    }
  }
}

TEST(StreamWindow, AFullWindowStopsNothingElse) {
  Pair pair(8, 1 << 20);
  EXPECT_EQ(pair.send_all(5000), 8u);
  for (int i = 1; i <= 200; ++i) {
    pair.start(0);
    pair.settle();
    ASSERT_EQ(pair.requests.size(), 1u + static_cast<size_t>(i)) << "a ring slot is held";
    pair.world.server.session->server().reply(pair.requests.back(), {.payload = as_bytes("r")},
                                              pair.world.network.now());
    pair.settle();
    ASSERT_EQ(pair.calls_done, i);
  }
}

TEST(StreamWindow, ForWantOfMemoryACallEndsAndNothingElse) {
  Pair pair(8, 8 << 20);
  server_pool().set_limit(64 << 10);
  EXPECT_TRUE(pair.send_buffer(1 << 20));
  pair.settle();
  server_pool().set_limit(size_t{1} << 30);
  ASSERT_TRUE(pair.call->done());
  EXPECT_EQ(pair.call->status().code(), StatusCode::kResourceExhausted) << pair.call->status().to_string();
  EXPECT_TRUE(pair.requests.front()->cancelled()) << "its handler is told";
  EXPECT_FALSE(pair.world.client.closed);
  pair.call = pair.start(kClientStreams);
  pair.settle();
  EXPECT_TRUE(pair.send_buffer(1 << 20));
  pair.settle();
  EXPECT_FALSE(pair.call->done());
}

TEST(StreamWindow, WithoutCreditsNoMorePilesUpThanTheOwnWindow) {
  Pair pair(1 << 20, uint64_t{1} << 40);
  const size_t own = SessionOptions().stream_window_items;
  size_t count = 0;
  while (count < 10 * own && pair.send(10)) ++count;
  EXPECT_GE(count, own);
  EXPECT_LE(count, 2 * own) << "the window, and what the peer's ring takes";
  pair.settle();
  EXPECT_TRUE(pair.send(10)) << "credits came";
}

TEST(StreamWindow, TheRuleItself) {
  StreamWindow window{4, 100};
  EXPECT_TRUE(window.has_room(3, 50, 50));
  EXPECT_FALSE(window.has_room(4, 0, 0));
  EXPECT_FALSE(window.has_room(0, 51, 50));
  EXPECT_TRUE(window.has_room(0, 25, 1000));
  EXPECT_FALSE(window.has_room(0, 26, 1000));
  EXPECT_FALSE(window.worth_telling(0, 24));
  EXPECT_TRUE(window.worth_telling(0, 25));
  EXPECT_TRUE(window.worth_telling(1, 0));
}

}  // namespace
}  // namespace rrpc::rpc
