// One situation each, played by hand against a session.
#include "parsed.h"
#include "raw_peer.h"

namespace rrpc::rpc {
namespace {

int count_type(const std::vector<RawPeer::Message>& messages, uint8_t type) {
  return static_cast<int>(std::count_if(messages.begin(), messages.end(),
                                        [type](const auto& message) { return message.header.type == type; }));
}
bool tells(const std::vector<RawPeer::Message>& messages, uint8_t type, uint64_t call_id) {
  return std::any_of(messages.begin(), messages.end(), [&](const auto& message) {
    return message.header.type == type && message.body.size() >= 8 && message.body.compare(0, 8, ids({call_id})) == 0;
  });
}
SessionOptions with_slots(uint32_t slots) {
  SessionOptions options;
  options.geometry.slots = slots;
  return options;
}
endpoint::Offer offer_of(uint32_t slots) {
  endpoint::Offer offer = RawPeer::offer();
  offer.slots = slots;
  return offer;
}
struct RawServer : RawWorld {
  explicit RawServer(const SessionOptions& options = {}, uint32_t peer_slots = RawPeer::kSlots)
      : RawWorld(Role::kServer, offer_of(peer_slots), options) {
    peer.send(kHello, hello());
    run();
    EXPECT_TRUE(end().ready);
  }
};

TEST(Session, RepliesThatCameBeforeTheEndAreDelivered) {
  RawClient raw;
  std::vector<ClientCallRef> calls;
  for (int i = 0; i < 40; ++i) calls.push_back(raw.start_call());
  raw.run();
  for (uint64_t id = 1; id <= 40; ++id) raw.peer.send(kReply, reply_body(id));
  raw.world.network.run_for(kMillisecond);
  raw.peer.qp().disconnect("done");
  raw.arrive_together();
  raw.run();
  EXPECT_TRUE(raw.end().closed);
  for (const ClientCallRef& call : calls)
    EXPECT_TRUE(call->done() && call->status().ok()) << call->status().to_string();
}

TEST(Session, ACallOnAConnectionThatJustDiedEnds) {
  RawClient raw;
  raw.peer.qp().disconnect("gone");
  raw.arrive_together();  // the session doesn't know yet
  const ClientCallRef call = raw.start_call();
  raw.run();
  ASSERT_TRUE(call->done());
  EXPECT_EQ(call->status().code(), StatusCode::kUnavailable);
  auto late = std::make_shared<ClientCall>();
  EXPECT_EQ(raw.session().client().start(late, {"m", {}, {}, std::nullopt, kNever}, 0).code(),
            StatusCode::kUnavailable);
}

TEST(Session, SmallAndLargeRingsAgreeOnTheWindow) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  world.connect(with_slots(16), with_slots(64));
  std::vector<ClientCallRef> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(std::make_shared<ClientCall>());
    ASSERT_TRUE(
        world.client.session->client().start(calls.back(), {"m", as_bytes("p"), {}, std::nullopt, kNever}, 0).ok());
  }
  world.run_for(kSecond);
  EXPECT_EQ(running.size(), 100u) << "the sender's window closed and no credit came back";
}

TEST(Session, CreditMessagesKeepToTheirReserve) {
  for (const uint32_t slots : {16u, 32u, 64u}) {
    RawServer raw(with_slots(slots));
    const int window = static_cast<int>(slots - kControlSlots);
    for (int i = 0; i < window - 2; ++i) raw.peer.send(kRequest, request_body(i + 1));
    for (int i = 0; i < static_cast<int>(kControlSlotsCounted); ++i) raw.peer.send(kPong, "");
    const auto messages = raw.run();
    EXPECT_FALSE(raw.end().closed) << raw.end().closed_with.to_string();
    EXPECT_GE(count_type(messages, endpoint::kCreditType), 1);
    EXPECT_LE(count_type(messages, endpoint::kCreditType), 4);
  }
}

TEST(Session, ControlCreditsComeBackWithoutOtherTraffic) {
  RawServer raw;
  for (uint32_t sent = 2; sent <= 40; sent += 2) {
    for (int i = 0; i < 2; ++i) raw.peer.send(kPong, "");
    const auto messages = raw.run();
    ASSERT_EQ(count_type(messages, endpoint::kCreditType), 1);
    EXPECT_EQ(messages.back().header.control_granted, sent);
  }
}

TEST(Session, AReplyFromTheHandlerGrantsOnlyWhatIsPostedAgain) {
  RawServer raw;
  raw.world.server.request = [&raw](const ServerCallRef& call) {
    raw.session().server().reply(call, {}, raw.world.network.now());
  };
  for (uint64_t id = 1; id <= 5; ++id) {
    raw.peer.send(kRequest, request_body(id));
    const auto messages = raw.run();
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].header.data_granted, id) << "HELLO and the requests before, but not this one's slot";
  }
}

TEST(Session, AnAcknowledgedCancelOvertakesItsReplyForGood) {
  RawServer raw(with_slots(16), 16);  // the window of replies: 8, one spent on HELLO
  for (uint64_t id = 1; id <= 7; ++id) raw.peer.send(kRequest, request_body(id));
  auto deaf = raw.peer.header(kRequest, 0);  // grants as of now, and no more
  raw.run();
  for (uint64_t id = 8; id <= 14; ++id) {
    const std::string body = request_body(id);
    deaf.body_bytes = static_cast<uint32_t>(body.size());
    raw.peer.send(deaf, body);
  }
  raw.run();
  ASSERT_EQ(raw.requests.size(), 14u);
  std::string large(2000, 'x');
  for (const ServerCallRef& call : raw.requests) {
    Reply reply;
    reply.payload = as_bytes(large);  // some with exposures
    raw.session().server().reply(call, std::move(reply), raw.world.network.now());
  }
  deaf.type = kCancel;
  deaf.body_bytes = 16;
  raw.peer.send(deaf, ids({13, 14}));
  auto before = raw.run();
  EXPECT_TRUE(tells(before, kCancelAck, 13));
  raw.peer.send(endpoint::kCreditType, "");  // now with credits
  for (const auto& message : raw.run()) before.push_back(message);
  EXPECT_TRUE(tells(before, kReplyBulk, 12));
  EXPECT_FALSE(tells(before, kReplyBulk, 13)) << "a reply after the acknowledged cancel";
  EXPECT_FALSE(tells(before, kReplyBulk, 14));
  EXPECT_FALSE(raw.end().closed) << raw.end().closed_with.to_string();
}

// Without a cancel from the client: it may be busy, or wish nobody well.
TEST(Session, ACallThatNoHandlerTookEndsAtItsDeadline) {
  RawServer raw;
  const auto late = [](uint64_t call_id) {
    RequestParts parts;
    parts.call_id = call_id;
    parts.timeout_ns = 20 * kMillisecond;
    return request_body(parts);
  };
  bool waiting = true;
  int asked = 0;
  raw.end().waits = [&](const ServerCallRef&) { return ++asked, waiting; };
  raw.peer.send(kRequest, late(1));
  raw.peer.send(kRequest, request_body(2));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 2u);
  EXPECT_EQ(asked, 0);
  raw.world.run_for(30 * kMillisecond);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(raw.session().server().calls_under_way(), 1u) << "the other has no deadline";
  EXPECT_TRUE(tells(raw.peer.take(), kReply, 1));

  waiting = false;
  raw.peer.send(kRequest, late(3));
  raw.run();
  raw.world.run_for(30 * kMillisecond);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(raw.session().server().calls_under_way(), 2u) << "a handler has it";
  EXPECT_FALSE(tells(raw.peer.take(), kReply, 3));
  EXPECT_FALSE(raw.end().closed) << raw.end().closed_with.to_string();
}

TEST(Session, DoneNeedsNoFurtherTraffic) {
  SessionOptions options;
  options.geometry.read_depth = 1;
  RawClient raw(options);
  raw.start_call();
  const ClientCallRef second = raw.start_call();
  raw.run();
  const auto result = raw.expose(30000);
  ReplyFixed fixed;
  for (fixed.call_id = 1; fixed.call_id <= 2; ++fixed.call_id) raw.peer.send(kReply, reply_body(fixed, {result}));
  raw.arrive_together();
  raw.end().session->progress(raw.world.network.now());  // the first is being read, the second waits its turn
  raw.session().client().cancel(second, cancelled("by the test"));
  raw.arrive_together();  // nobody polls
  EXPECT_TRUE(tells(raw.peer.take(), kDone, 2));
}

TEST(Session, AResultThatDoesNotFitTheCallersMemoryFailsTheCallAlone) {
  RawClient raw;
  const ClientCallRef call = raw.start_call(pattern_buffer(100, 1, 1));
  raw.run();
  ReplyFixed fixed;
  fixed.call_id = 1;
  fixed.out_index = 0;
  raw.peer.send(kReply, reply_body(fixed, {raw.expose(50)}));
  const auto messages = raw.run();
  ASSERT_TRUE(call->done());
  EXPECT_EQ(call->status().code(), StatusCode::kInvalidArgument) << call->status().to_string();
  EXPECT_TRUE(tells(messages, kDone, 1));
  EXPECT_FALSE(raw.end().closed);
}

// The peer may say so of ranges that this transport can't read in place.
TEST(Session, WhatIsLentIsFetchedWhereItCantBeReadInPlace) {
  RawClient raw;
  const ClientCallRef call = raw.start_call();
  raw.run();
  ReplyFixed fixed;
  fixed.call_id = 1;
  endpoint::Descriptor lent = raw.expose(30000);
  lent.lent = true;
  raw.peer.send(kReply, reply_body(fixed, {lent, raw.expose(100)}));
  const auto messages = raw.run();
  ASSERT_TRUE(call->done());
  EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  ASSERT_EQ(call->blocks().size(), 2u);
  for (const endpoint::ReceivedBlock& block : call->blocks()) EXPECT_FALSE(block.read_only());
  EXPECT_EQ(call->blocks()[0].size(), 30000u);
  EXPECT_TRUE(tells(messages, kDone, 1));
}

TEST(Session, NothingBetweenThePiecesOfABufferIsExposed) {
  RawClient raw;
  const Holdings before = Holdings::now();
  auto call = std::make_shared<ClientCall>();
  CallRequest request{"m", as_bytes("p"), {}, std::nullopt, kNever};
  request.buffers.push_back(pattern_pieces(5000, 5, 1, 1));
  const std::vector<MutableBytes> pieces = request.buffers.back().pieces;
  ASSERT_TRUE(raw.session().client().start(call, std::move(request), raw.world.network.now()).ok());
  EXPECT_EQ(Holdings::now().bytes_exposed, before.bytes_exposed + 5000);
  EXPECT_EQ(Holdings::now().exposures_live, before.exposures_live + 5);
  const auto messages = raw.run();
  const auto sent = std::ranges::find(messages, kRequest, [](const auto& message) { return message.header.type; });
  ASSERT_NE(sent, messages.end());
  const auto parsed = testing::parsed_request(as_bytes(sent->body));
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(first_buffer(parsed->descriptors).size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(parsed->descriptors[i].address, reinterpret_cast<uint64_t>(pieces[i].data()));
    EXPECT_EQ(parsed->descriptors[i].length_bytes, pieces[i].size());
  }
}

// A thousand buffers of five pieces have more descriptors than a message may: some are packed, none is refused.
TEST(Session, MorePiecesThanAMessageHoldsArePacked) {
  World world(1);
  static constexpr size_t kBuffers = 1000, kBytes = 100;
  const auto all = [&](uint64_t part) {
    std::vector<endpoint::Buffer> buffers;
    for (size_t i = 0; i < kBuffers; ++i) buffers.push_back(pattern_pieces(kBytes, 5, i + 1, part));
    return buffers;
  };
  const auto expect_all = [](std::vector<endpoint::ReceivedBlock>& blocks, uint64_t part) {
    ASSERT_EQ(blocks.size(), kBuffers);
    for (size_t i = 0; i < kBuffers; ++i)
      ASSERT_TRUE(has_pattern({blocks[i].data(), blocks[i].size()}, i + 1, part)) << i;
  };
  world.server.request = [&](const ServerCallRef& call) {
    expect_all(call->blocks(), 1);
    Reply reply;
    reply.buffers = all(2);
    world.server.session->server().reply(call, std::move(reply), world.network.now());
  };
  SessionOptions options;
  options.buffers_max = 4096;
  world.connect({}, options);
  const int64_t copies = endpoint::total(&endpoint::Counters::copies);
  auto call = std::make_shared<ClientCall>();
  ASSERT_TRUE(world.client.session->client().start(call, {"m", as_bytes("p"), all(1), std::nullopt, kNever}, 0).ok());
  ASSERT_TRUE(world.run_until([&] { return call->done(); }, 10 * kSecond));
  ASSERT_TRUE(call->status().ok()) << call->status().to_string();
  expect_all(call->blocks(), 2);
  // 5000 descriptors to 4096 takes 226 buffers packed, each way; and each body is longer than a slot.
  EXPECT_EQ(endpoint::total(&endpoint::Counters::copies) - copies, 2 * (226 + 1));
}

TEST(Session, ACancelledCallsMemoryWaitsForTheAcknowledgement) {
  RawClient raw;
  const Holdings before = Holdings::now();
  const int holds = TestHold::live();
  auto call = std::make_shared<ClientCall>();
  CallRequest request{"m", as_bytes("p"), {}, std::nullopt, kNever};
  request.buffers.push_back(pattern_buffer(5000, 1, 1));
  ASSERT_TRUE(raw.session().client().start(call, std::move(request), raw.world.network.now()).ok());
  raw.session().client().cancel(call, cancelled("by the test"));
  EXPECT_TRUE(call->done());
  EXPECT_TRUE(tells(raw.run(), kCancel, 1));
  EXPECT_EQ(TestHold::live(), holds + 1) << "let go while the peer may read it";
  EXPECT_EQ(Holdings::now().bytes_exposed, before.bytes_exposed + 5000);
  raw.peer.send(kCancelAck, ids({1}));
  raw.run();
  EXPECT_EQ(TestHold::live(), holds);
  EXPECT_EQ(Holdings::now().bytes_exposed, before.bytes_exposed);
  EXPECT_EQ(raw.session().client().calls_in_flight(), 0u);
}

TEST(Session, ExposedBytesAreGivenBackToTheLimit) {
  SessionOptions options;
  options.exposed_bytes_max = 10000;
  World world(1);
  world.server.request = [&world](const ServerCallRef& call) {
    Reply reply;
    reply.buffers.push_back(pattern_buffer(6000, 1, 1));
    world.server.session->server().reply(call, std::move(reply), world.network.now());
  };
  world.connect(options, options);
  for (int i = 0; i < 20; ++i) {
    auto call = std::make_shared<ClientCall>();
    CallRequest request{"m", as_bytes("p"), {}, std::nullopt, kNever};
    request.buffers.push_back(pattern_buffer(6000, 1, 1));
    const Status status = world.client.session->client().start(call, std::move(request), world.network.now());
    ASSERT_TRUE(status.ok()) << i << ": " << status.to_string();
    if (i % 3 == 2) world.client.session->client().cancel(call, cancelled("by the test"));
    world.run_for(10 * kMillisecond);
    ASSERT_TRUE(call->done());
    EXPECT_EQ(call->status().ok(), i % 3 != 2) << call->status().to_string();
  }
  CallRequest request{"m", {}, {}, pattern_buffer(10001, 1, 1), kNever};
  EXPECT_EQ(world.client.session->client().start(std::make_shared<ClientCall>(), std::move(request), 0).code(),
            StatusCode::kResourceExhausted);
}

TEST(Session, LandingMemoryStaysWithTheDeviceUntilItsReadsAreFlushed) {
  RawClient raw;
  const int64_t used_before = Holdings::now().pool_bytes_used;
  ClientCallRef call = raw.start_call();
  raw.run();
  ReplyFixed fixed;
  fixed.call_id = 1;
  raw.peer.send(kReply, reply_body(fixed, {raw.expose(30000)}));
  raw.arrive_together();
  raw.session().progress(raw.world.network.now());
  raw.session().close(unavailable("by the test"));
  EXPECT_TRUE(call->done()) << "the caller need not wait";
  call.reset();
  EXPECT_GT(Holdings::now().pool_bytes_used, used_before) << "given back with a read in flight";
  EXPECT_FALSE(raw.session().quiet());
  raw.run();
  EXPECT_EQ(Holdings::now().pool_bytes_used, used_before);
  EXPECT_TRUE(raw.session().quiet());
}

// A peer that gives no credits must not make queues grow without end, whatever waits in them.
void expect_stopped(bool cancels) {
  SessionOptions options = with_slots(16);
  options.calls_in_flight_max = 2;
  RawServer raw(options);
  auto deaf = raw.peer.header(kRequest, 0);
  uint64_t id = 0;
  const auto send = [&](uint8_t type, const std::string& body) {
    deaf.type = type;
    deaf.body_bytes = static_cast<uint32_t>(body.size());
    raw.peer.send(deaf, body);
  };
  while (!raw.end().closed && id < 20000) {
    for (int i = 0; i < 4; ++i) send(kRequest, request_body(++id));
    if (cancels) send(kCancel, ids({id - 3, id - 2, id - 1, id}));
    raw.run();
  }
  ASSERT_TRUE(raw.end().closed);
  EXPECT_TRUE(raw.end().closed_with.is_protocol_error());
  EXPECT_NE(raw.end().closed_with.message().find("takes no "), std::string::npos);
}
TEST(Session, APeerThatTakesNoRepliesIsStopped) { expect_stopped(false); }
TEST(Session, APeerThatTakesNoAcknowledgementsIsStopped) { expect_stopped(true); }

TEST(Session, DrainTellsThePeerAndRefusesNewCalls) {
  RawServer raw;
  raw.session().drain(std::string(5000, 'x'));  // cut to what a slot holds
  EXPECT_EQ(count_type(raw.run(), kGoAway), 1);
  raw.peer.send(kRequest, request_body(1));
  const auto messages = raw.run();
  EXPECT_TRUE(tells(messages, kReply, 1) || tells(messages, kReplyBulk, 1));
  EXPECT_TRUE(raw.requests.empty());
}

TEST(Session, ADeviceTooSmallForTheRingIsRefused) {
  FaultPlan plan;
  plan.limits_max.send_depth = 64;
  World world(1, plan);
  const auto config = endpoint::queue_pair_config({});
  auto cq = world.client.device->create_completion_queue(1024);
  auto qp = world.client.device->open(*cq, "server:1", config, kNever).value();
  Session session(Role::kClient, {*world.client.device, client_pool(), world.client.registrations}, std::move(cq),
                  std::move(qp), {}, 1, {}, world.client);
  EXPECT_EQ(session.start(0).code(), StatusCode::kResourceExhausted);
  world.client.closed = false;
}

}  // namespace
}  // namespace rrpc::rpc
