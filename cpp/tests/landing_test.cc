// What a peer may claim of a server's memory: raw peers that claim too much, and too long.
#include <tuple>

#include "parsed.h"
#include "raw_peer.h"

namespace rrpc::rpc {
namespace {

struct ClaimedServer : RawWorld {
  explicit ClaimedServer(const SessionOptions& options = {}) : RawWorld(Role::kServer, RawPeer::offer(), options) {
    peer.send(kHello, encode_hello({{"wire", "1"}, {"window", "64,65536"}}));
    run();
    EXPECT_TRUE(end().ready);
    std::tie(address, rkey) = peer.expose_some(std::string(100000, 'x'));
    used_before = Holdings::now().pool_bytes_used;
  }
  // Nothing of what is read from the peer comes, for as long as the test looks.
  void stall() {
    world.network.plan().late_read_probability = 1;
    world.network.plan().late_read_delay_ns_max = 1000 * kSecond;
  }
  int64_t claimed() const { return Holdings::now().pool_bytes_used - used_before; }
  void request_bulk(uint64_t call_id, uint64_t length_bytes) {
    peer.send(kRequestBulk, bytes_of(BulkBody{call_id, address, length_bytes, rkey, 0}));
  }
  void request(uint64_t call_id, uint64_t length_bytes, TimeNs timeout = -1) {
    RequestParts parts;
    parts.call_id = call_id;
    parts.descriptors = {{address, length_bytes, rkey}};
    parts.timeout_ns = timeout;
    peer.send(kRequest, request_body(parts));
  }
  // Of the replies that came: the text of this call's.
  std::string refusal(uint64_t call_id) {
    for (const RawPeer::Message& message : run()) {
      if (message.header.type != kReply) continue;
      const ParsedReply reply = testing::parsed_reply(as_bytes(message.body)).value();
      if (reply.fixed.call_id != call_id) continue;
      EXPECT_EQ(static_cast<StatusCode>(reply.fixed.status), StatusCode::kResourceExhausted);
      EXPECT_TRUE(reply.fixed.flags & kNotExecuted);
      return std::string(reply.message);
    }
    return "";
  }
  int64_t used_before = 0;
  uint64_t address = 0;  // of memory of the peer's
  uint32_t rkey = 0;
};

SessionOptions with_budgets(size_t landing, size_t exposed = SIZE_MAX, size_t queued = SIZE_MAX) {
  SessionOptions options;
  options.budgets = std::make_shared<Budgets>(landing, exposed, queued);
  return options;
}
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Landing, AMessageThatIsTooLongIsRefusedBeforeItTakesMemory) {
  ClaimedServer raw;
  raw.request_bulk(1, size_t{65} << 20);
  const std::string why = raw.refusal(1);
  EXPECT_TRUE(says(why, "message_bytes_max: ") && says(why, "the limit is 67108864")) << why;
  EXPECT_EQ(raw.claimed(), 0);
  EXPECT_FALSE(raw.end().closed);
}

TEST(Landing, WhatCouldNeverLandIsRefusedByName) {
  ClaimedServer raw(with_budgets(100000));
  raw.request(1, 50001);
  const std::string why = raw.refusal(1);
  EXPECT_TRUE(says(why, "landing_bytes_max: ") && says(why, "the limit is 50000")) << why;
  raw.request_bulk(2, 60000);
  EXPECT_TRUE(says(raw.refusal(2), "landing_bytes_max: "));
  EXPECT_EQ(raw.claimed(), 0);
}

TEST(Landing, APeerThatServesNoReadsHoldsItsShareAndNoMore) {
  const SessionOptions options = with_budgets(1 << 20);
  ClaimedServer raw(options);
  raw.stall();
  for (uint64_t id = 1; id <= 20; ++id) raw.request(id, 100000);
  for (uint64_t id = 21; id <= 40; ++id) raw.request_bulk(id, 100000);
  raw.run();
  EXPECT_GT(raw.claimed(), 0);
  EXPECT_LE(raw.claimed(), 512 << 10);
  EXPECT_EQ(options.budgets->landing.held(), static_cast<size_t>(raw.claimed()));
  EXPECT_EQ(raw.session().server().calls_under_way(), 40u);
  raw.peer.send(kCancel, ids({30, 31}));  // they wait: nothing is to be awaited for them
  raw.run();
  EXPECT_EQ(raw.session().server().calls_under_way(), 38u);
  raw.session().close(unavailable("enough"));
  raw.run();
  EXPECT_EQ(options.budgets->landing.held(), 0u);
}

// A server that soon ends a fetch of which nothing comes.
SessionOptions impatient() {
  SessionOptions options = with_budgets(1 << 20);
  options.fetch_timeout = 3 * kMillisecond;
  options.keepalive_interval = kSecond;
  return options;
}

TEST(Landing, AFetchOfWhichNothingComesEndsItsConnection) {
  const SessionOptions options = impatient();
  ClaimedServer raw(options);
  raw.stall();
  raw.request(1, 50000);
  raw.run();
  EXPECT_FALSE(raw.end().closed);
  for (int i = 0; i < 10 && !raw.end().closed; ++i) {
    raw.peer.send(kPing, "");  // it lives, and takes what it is sent
    raw.run();
  }
  ASSERT_TRUE(raw.end().closed);
  EXPECT_TRUE(says(raw.end().closed_with.message(), "fetch_timeout: the peer answers, but"))
      << raw.end().closed_with.to_string();
  raw.run();
  EXPECT_EQ(raw.claimed(), 0);
  EXPECT_EQ(options.budgets->landing.held(), 0u);
}

TEST(Landing, AFetchFromAPeerThatIsGoneSaysSo) {
  ClaimedServer raw(impatient());
  raw.stall();
  raw.request(1, 50000);
  for (int i = 0; i < 10 && !raw.end().closed; ++i) raw.run();
  ASSERT_TRUE(raw.end().closed);
  EXPECT_EQ(raw.end().closed_with.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(says(raw.end().closed_with.message(), "fetch_timeout: the peer is silent"))
      << raw.end().closed_with.to_string();
}

TEST(Landing, ACallThatWaitsForMemoryEndsAtItsDeadline) {
  const SessionOptions options = with_budgets(100000);
  ClaimedServer raw(options);
  raw.stall();
  raw.request(1, 40000);
  raw.request(2, 40000, kMillisecond);
  bool told = false;
  for (int i = 0; i < 3; ++i) {
    for (const RawPeer::Message& message : raw.run()) {
      if (message.header.type != kReply) continue;
      const ParsedReply reply = testing::parsed_reply(as_bytes(message.body)).value();
      EXPECT_EQ(reply.fixed.call_id, 2u);
      EXPECT_EQ(static_cast<StatusCode>(reply.fixed.status), StatusCode::kDeadlineExceeded);
      EXPECT_TRUE(says(std::string(reply.message), "landing memory")) << reply.message;
      told = true;
    }
  }
  EXPECT_TRUE(told);
}

TEST(Landing, AnswersGiveTheirMemoryToThoseThatWait) {
  const SessionOptions options = with_budgets(100000);
  ClaimedServer raw(options);
  for (uint64_t id = 1; id <= 5; ++id) {
    raw.request(id, 40000);
  }
  raw.run();
  for (size_t answered = 0; answered < 5; ++answered) {
    ASSERT_EQ(raw.requests.size(), answered + 1) << "one at a time has room, in their order";
    ASSERT_EQ(raw.requests[answered]->blocks().size(), 1u);
    raw.session().server().reply(raw.requests[answered], {}, raw.world.network.now());
    raw.run();
  }
  EXPECT_EQ(options.budgets->landing.held(), 0u) << "though the handlers still have the arguments";
}

TEST(Landing, AnItemIsNoLongerThanItWasAnnounced) {
  ClaimedServer raw;
  RequestParts parts;
  std::string body = request_body(parts);
  body[offsetof(RequestFixed, flags)] = kClientStreams;
  raw.peer.send(kRequest, body);
  raw.run();
  raw.peer.send(kItemBulk, bytes_of(ItemBulk{1, raw.address, size_t{32} << 20, raw.rkey, 0, 1}));
  raw.run();
  EXPECT_EQ(raw.claimed(), 0);
  ASSERT_TRUE(raw.end().closed);
  EXPECT_TRUE(says(raw.end().closed_with.message(), "announced as 1 bytes")) << raw.end().closed_with.to_string();
}

// An item's fetch hasn't begun while it waits for landing memory: so from then on it is the user who gives its memory.
TEST(Landing, AnItemThatWaitsForMemoryTakesTheUsersInstead) {
  const SessionOptions options = with_budgets(100000);
  ClaimedServer raw(options);
  std::string body = request_body(1);
  body[offsetof(RequestFixed, flags)] = kClientStreams;
  raw.peer.send(kRequest, body);
  for (uint32_t i = 0; i < 2; ++i)
    raw.peer.send(kItem, bytes_of(ItemFixed{1, i, 1, 0, 0}) +
                             encode_descriptors(std::vector<endpoint::Descriptor>{{raw.address, 40000, raw.rkey}}));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 1u);
  const StreamRef& stream = raw.requests[0]->stream();
  Streams& streams = raw.session().streams();
  EXPECT_EQ(options.budgets->landing.held(), endpoint::Pool::block_bytes(40000)) << "there is room for one at a time";

  streams.land_by_hand(stream);
  std::vector<Item> items;
  streams.take(stream, 9, items);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].blocks().size(), 1u) << "it had landed before";
  raw.run();
  EXPECT_EQ(options.budgets->landing.held(), 0u) << "the second takes none of the pool";
  ASSERT_EQ(Streams::wanted(stream), std::vector<size_t>{40000});
  std::vector<std::byte> memory(40000);
  ASSERT_TRUE(streams.land(stream, {{memory.data(), memory.size(), endpoint::kNoOwner, nullptr, {}}}).ok());
  raw.run();
  streams.take(stream, 9, items);
  ASSERT_EQ(items.size(), 2u);
  ASSERT_EQ(items[1].memory().size(), 1u);
  EXPECT_EQ(as_text(memory), std::string(40000, 'x'));
}

TEST(Landing, MessagesThatWaitHaveALimit) {
  SessionOptions options = with_budgets(1 << 20, SIZE_MAX, size_t{1} << 20);
  options.queued_bytes_max = 200000;
  ClaimedServer raw(options);
  RequestParts parts;
  parts.payload = std::string(900, 'p');
  std::string why;
  size_t sent = 0;
  while (why.empty() && sent < 1000) {
    parts.call_id = ++sent;
    raw.peer.send(kRequest, request_body(parts));
    why = raw.refusal(sent);
  }
  EXPECT_TRUE(says(why, "queued_bytes_max: ") && says(why, "the limit is 200000")) << why;
  EXPECT_EQ(raw.requests.size(), sent - 1);
  for (const ServerCallRef& call : raw.requests) raw.session().server().reply(call, {}, raw.world.network.now());
  raw.run();
  parts.call_id = sent + 1;
  raw.peer.send(kRequest, request_body(parts));
  raw.run();
  EXPECT_EQ(raw.requests.size(), sent) << "there is room again";
}

TEST(Landing, ResultsThatNobodyFetchesHaveALimit) {
  const SessionOptions options = with_budgets(1 << 20, 400000);
  ClaimedServer raw(options);
  for (uint64_t id = 1; id <= 4; ++id) raw.peer.send(kRequest, request_body(id));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    Reply reply;
    reply.buffers.push_back(pattern_buffer(100000, 1, i));
    raw.session().server().reply(raw.requests[i], std::move(reply), raw.world.network.now());
  }
  int refused = 0;
  for (const RawPeer::Message& message : raw.run()) {
    const ParsedReply reply = testing::parsed_reply(as_bytes(message.body)).value();
    if (reply.fixed.status == 0) continue;
    ++refused;
    EXPECT_EQ(reply.fixed.call_id, 3u) << "two hundred thousand bytes are half of it";
    EXPECT_TRUE(says(std::string(reply.message), "exposed_bytes_max: ")) << reply.message;
  }
  EXPECT_EQ(refused, 1);
  raw.peer.send(kDone, ids({1}));
  raw.run();
  EXPECT_EQ(options.budgets->exposed.held(), 100000u);
}

}  // namespace
}  // namespace rrpc::rpc
