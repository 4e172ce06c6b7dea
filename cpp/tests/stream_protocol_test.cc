// Hand-made peers that break the rules of streams, and the rules themselves between two sessions.
#include "raw_peer.h"

namespace rrpc::rpc {
namespace {

using Script = std::function<void(RawWorld&)>;
struct Fault {
  const char* name;
  const char* expected;  // part of the error's text
  Script script;
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

constexpr uint64_t kBoth = 1, kUnary = 2, kFromServer = 3, kFromClient = 4;  // the calls there are

std::string item(uint64_t call_id, uint32_t sequence, uint8_t flags = 0, const std::string& payload = "x",
                 const std::vector<endpoint::Descriptor>& descriptors = {}) {
  const ItemFixed fixed{call_id, sequence, static_cast<uint16_t>(descriptors.size()), flags, 0};
  return bytes_of(fixed) + encode_descriptors(descriptors) + payload;
}
std::string window(uint64_t call_id, uint32_t fetched, uint32_t taken, uint64_t taken_bytes) {
  return bytes_of(WindowEntry{call_id, fetched, taken, taken_bytes});
}
std::string request(uint64_t call_id, uint8_t flags) {
  std::string body = request_body(call_id);
  body[offsetof(RequestFixed, flags)] = static_cast<char>(flags);
  return body;
}
std::string hello_with_window(const std::string& text) { return encode_hello({{"wire", "1"}, {"window", text}}); }

SessionOptions small_windows() {
  SessionOptions options;
  options.stream_window_items = 4;
  options.stream_window_bytes = 1000;
  return options;
}

void expect_protocol_error(RawWorld& raw, const std::string& text) {
  ASSERT_TRUE(raw.end().closed) << "the session let it pass";
  EXPECT_TRUE(raw.end().closed_with.is_protocol_error()) << raw.end().closed_with.to_string();
  EXPECT_NE(raw.end().closed_with.message().find(text), std::string::npos) << raw.end().closed_with.to_string();
}

// --- to a server, which has the four calls -----------------------------------------------------------

const Fault kServerFaults[] = {
    {"OfACallThatNeverCame", "never came", [](RawWorld& raw) { raw.peer.send(kItem, item(99, 0)); }},
    {"OfAUnaryCall", "has no streams", [](RawWorld& raw) { raw.peer.send(kItem, item(kUnary, 0)); }},
    {"OfTheOtherEndsStream", "has none from that end",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kFromServer, 0)); }},
    {"AsTheAnsweringEnd", "no streams under way",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth | kAnsweringBit, 0)); }},
    {"Twice", "in the place of 1",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0));
       raw.peer.send(kItem, item(kBoth, 0));
     }},
    {"OneLeftOut", "in the place of 0", [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 1)); }},
    {"MoreThanTheWindowHas", "passes the window of 4,1000",
     [](RawWorld& raw) {
       for (uint32_t i = 0; i < 5; ++i) raw.peer.send(kItem, item(kBoth, i));
     }},
    {"MoreInOneMessageThanTheWindowHas", "passes the window of 4,1000",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, kSeveralItems, std::string(5 * sizeof(uint32_t), '\0')));
     }},
    {"MoreBytesInOneMessageThanTheWindowHas", "passes the window of 4,1000",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, 0, std::string(300, 'x')));
       const std::string first = bytes_of(uint32_t{350}) + std::string(350, 'x');
       raw.peer.send(kItem, item(kBoth, 1, kSeveralItems, first + bytes_of(uint32_t{351}) + std::string(351, 'x')));
     }},
    {"MoreBytesThanTheWindowHas", "passes the window of 4,1000",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, 0, std::string(300, 'x')));
       raw.peer.send(kItem, item(kBoth, 1, 0, std::string(701, 'x')));
     }},
    {"BufferLargerThanTheWindow", "passes the window of 4,1000",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, 0, std::string(300, 'x')));
       raw.peer.send(kItem, item(kBoth, 1, 0, "", {{0x10000, 5000, 1}}));
     }},
    {"AfterTheEnd", "after the stream's end",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, kStreamEnd | kNoItem, ""));
       raw.peer.send(kItem, item(kBoth, 0));
     }},
    {"BulkAfterTheEnd", "bulk item 1",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, kStreamEnd));
       raw.peer.send(kItemBulk, bytes_of(ItemBulk{kBoth, 0x10000, 100, 1, 1, 50}));
     }},
    {"MetadataOfACaller", "initial metadata",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kInitialMetadata)); }},
    {"UnknownFlags", "unknown flags 32", [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, 32)); }},
    {"AsksWithAnItem", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kAskWindow)); }},
    {"AsksWithTheEnd", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kStreamEnd | kNoItem | kAskWindow, "")); }},
    {"AsksWithAPayload", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kNoItem | kAskWindow, "x")); }},
    {"AsksAheadOfItsItems", "in the place of 0",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 1, kNoItem | kAskWindow, "")); }},
    {"NoItemButAPayload", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kStreamEnd | kNoItem, "x")); }},
    {"NeitherItemNorEnd", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kNoItem, "")); }},
    {"SeveralWithABuffer", "don't go with each other",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kSeveralItems, "1234", {{0x10000, 10, 1}})); }},
    {"SeveralCutShort", "too short for them",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kSeveralItems, std::string("\x05\0\0\0abc", 7))); }},
    {"SeveralOfWhichOneIsEndless", "too short for them",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(kBoth, 0, kSeveralItems, bytes_of(uint32_t{1}) + "x" + bytes_of(UINT32_MAX) + "x"));
     }},
    {"SeveralThatAreNone", "too short for them",
     [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0, kSeveralItems, "")); }},
    {"CutShort", "truncated item", [](RawWorld& raw) { raw.peer.send(kItem, item(kBoth, 0).substr(0, 10)); }},
    {"CutInItsId", "truncated item", [](RawWorld& raw) { raw.peer.send(kItem, "abc"); }},
    {"BulkCutShort", "truncated bulk item",
     [](RawWorld& raw) { raw.peer.send(kItemBulk, bytes_of(kBoth) + std::string(10, 'x')); }},
    {"BulkOfNothing", "bad descriptor",
     [](RawWorld& raw) { raw.peer.send(kItemBulk, bytes_of(ItemBulk{kBoth, 0x10000, 0, 1, 0, 0})); }},
    {"BulkThatIsAnotherItem", "isn't the one announced",
     [](RawWorld& raw) {
       // Its memory has zeros only.
       const auto [address, rkey] = raw.peer.expose_some();
       raw.peer.send(kItemBulk, bytes_of(ItemBulk{kBoth, address, 100, rkey, 0, 84}));
     }},
    {"WindowOfACallThatNeverCame", "never came", [](RawWorld& raw) { raw.peer.send(kWindow, window(99, 0, 0, 0)); }},
    {"WindowWhereNothingIsSent", "which were not sent",
     [](RawWorld& raw) { raw.peer.send(kWindow, window(kFromClient, 0, 0, 0)); }},
    {"WindowOfItemsThatWereNotSent", "which were not sent",
     [](RawWorld& raw) { raw.peer.send(kWindow, window(kBoth, 1, 0, 0)); }},
    {"WindowOfBytesThatWereNotSent", "which were not sent",
     [](RawWorld& raw) { raw.peer.send(kWindow, window(kBoth, 0, 0, 1)); }},
    {"WindowTakenButNotFetched", "which were not sent",
     [](RawWorld& raw) {
       raw.send_items(0, 2);
       raw.peer.send(kWindow, window(kBoth, 1, 2, 0));
     }},
    {"WindowThatTakesBack", "which were not sent",
     [](RawWorld& raw) {
       raw.send_items(0, 2);
       raw.peer.send(kWindow, window(kBoth, 2, 2, 2));
       raw.peer.send(kWindow, window(kBoth, 2, 1, 2));
     }},
    {"WindowCutShort", "truncated window", [](RawWorld& raw) { raw.peer.send(kWindow, "12345"); }},
    {"NoWindowAtAll", "truncated window", [](RawWorld& raw) { raw.peer.send(kWindow, ""); }},
    {"DoneBeforeTheAck", "before its reply", [](RawWorld& raw) { raw.peer.send(kDone, ids({kBoth})); }},
};

void open_four_calls(RawWorld& raw) {
  raw.peer.send(kHello, hello_with_window("4,1000"));
  raw.peer.send(kRequest, request(kBoth, kClientStreams | kServerStreams));
  raw.peer.send(kRequest, request(kUnary, 0));
  raw.peer.send(kRequest, request(kFromServer, kServerStreams));
  raw.peer.send(kRequest, request(kFromClient, kClientStreams));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 4u);
}

class StreamFaultAtServer : public testing::TestWithParam<Fault> {};
TEST_P(StreamFaultAtServer, Closes) {
  RawWorld raw(Role::kServer, RawPeer::offer(), small_windows());
  open_four_calls(raw);
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
  for (const ServerCallRef& call : raw.requests) {
    EXPECT_TRUE(call->cancelled());
    EXPECT_TRUE(call->stream() == nullptr || call->stream()->ended());
  }
}

// --- to a client, whose call 1 streams both ways -------------------------------------------------------

const Fault kClientFaults[] = {
    {"OfNoCall", "no streams under way", [](RawWorld& raw) { raw.peer.send(kItem, item(7 | kAnsweringBit, 0)); }},
    {"AsTheCallingEnd", "", [](RawWorld& raw) { raw.peer.send(kItem, item(1, 0)); }},
    {"OutOfPlace", "in the place of 0", [](RawWorld& raw) { raw.peer.send(kItem, item(1 | kAnsweringBit, 3)); }},
    {"AfterTheReply", "no streams under way",
     [](RawWorld& raw) {
       raw.peer.send(kReply, reply_body(1));
       raw.peer.send(kItem, item(1 | kAnsweringBit, 0));
     }},
    {"MetadataAfterAnItem", "initial metadata",
     [](RawWorld& raw) {
       raw.peer.send(kItem, item(1 | kAnsweringBit, 0));
       raw.peer.send(kItem, item(1 | kAnsweringBit, 1, kInitialMetadata));
     }},
    {"PastTheWindow", "passes the window",
     [](RawWorld& raw) {
       for (uint32_t i = 0; i < 5; ++i) raw.peer.send(kItem, item(1 | kAnsweringBit, i));
     }},
    {"WindowOfNothing", "which were not sent",
     [](RawWorld& raw) { raw.peer.send(kWindow, window(1 | kAnsweringBit, 1, 1, 1)); }},
};

ClientCallRef start_stream(RawWorld& raw) {
  auto call = std::make_shared<ClientCall>();
  CallRequest request{"m", as_bytes("p"), {}, std::nullopt, kNever};
  request.kind = kClientStreams | kServerStreams;
  EXPECT_TRUE(raw.session().client().start(call, std::move(request), raw.world.network.now()).ok());
  return call;
}

class StreamFaultAtClient : public testing::TestWithParam<Fault> {};
TEST_P(StreamFaultAtClient, ClosesAndEndsTheCall) {
  RawWorld raw(Role::kClient, RawPeer::offer(), small_windows());
  raw.peer.send(kHello, hello_with_window("4,1000"));
  raw.run();
  const ClientCallRef call = start_stream(raw);
  raw.run();
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
  EXPECT_TRUE(call->done());
  EXPECT_TRUE(call->stream()->ended());
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Streams, StreamFaultAtServer, testing::ValuesIn(kServerFaults), kName);
INSTANTIATE_TEST_SUITE_P(Streams, StreamFaultAtClient, testing::ValuesIn(kClientFaults), kName);

TEST(StreamHello, AWindowThatIsNoneCloses) {
  for (const char* text : {"", "4", "4,", ",5", "0,5", "5,0", "4,5,6", "-1,5", "99999999999,1", "4;5"}) {
    SCOPED_TRACE(text);
    RawWorld raw(Role::kServer);
    raw.peer.send(kHello, hello_with_window(text));
    raw.run();
    expect_protocol_error(raw, "a HELLO whose window is");
  }
}

TEST(StreamHello, APeerWithoutAWindowTakesNoStreams) {
  RawWorld raw(Role::kClient);
  raw.peer.send(kHello, hello());
  raw.run();
  CallRequest asked{"m", as_bytes("p"), {}, std::nullopt, kNever};
  asked.kind = kServerStreams;
  auto call = std::make_shared<ClientCall>();
  const Status status = raw.session().client().start(call, std::move(asked), raw.world.network.now());
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status.to_string();
  RawWorld server(Role::kServer);
  server.peer.send(kHello, hello());
  server.peer.send(kRequest, request(1, kServerStreams));
  server.run();
  expect_protocol_error(server, "without a window");
}

TEST(StreamEnds, WhatCrossesACallsEndIsDropped) {
  RawWorld raw(Role::kServer, RawPeer::offer(), small_windows());
  open_four_calls(raw);
  raw.session().server().reply(raw.requests[0], {.payload = as_bytes("early")}, raw.world.network.now());
  raw.peer.send(kItem, item(kBoth, 0));
  raw.peer.send(kItem, item(kBoth, 3));  // whatever it is
  raw.peer.send(kWindow, window(kBoth, 0, 0, 0));
  raw.peer.send(kCancel, ids({kFromClient}));
  raw.peer.send(kItem, item(kFromClient, 0));
  raw.run();
  EXPECT_FALSE(raw.end().closed) << raw.end().closed_with.to_string();
  EXPECT_TRUE(raw.requests[3]->cancelled());
}

// The request is still being fetched, and there may be items by then.
TEST(StreamEnds, ItemsNeedNotWaitForALongRequest) {
  RawWorld raw(Role::kServer, RawPeer::offer(), small_windows());
  raw.peer.send(kHello, hello_with_window("4,1000"));
  const auto [address, rkey] = raw.peer.expose_some(request(1, kClientStreams));
  raw.peer.send(kRequestBulk, bytes_of(BulkBody{1, address, request(1, kClientStreams).size(), rkey, 0}));
  raw.peer.send(kItem, item(1, 0, kStreamEnd, "early"));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 1u);
  std::vector<Item> items;
  raw.session().streams().take(raw.requests[0]->stream(), 9, items);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(as_text(items[0].payload()), "early");
  EXPECT_TRUE(raw.requests[0]->stream()->exhausted());
}
TEST(StreamEnds, ItemsOfALongRequestWithoutStreamsClose) {
  RawWorld raw(Role::kServer);
  raw.peer.send(kHello, hello_with_window("4,1000"));
  const auto [address, rkey] = raw.peer.expose_some(request(1, 0));
  raw.peer.send(kRequestBulk, bytes_of(BulkBody{1, address, request(1, 0).size(), rkey, 0}));
  raw.peer.send(kItem, item(1, 0));
  raw.run();
  expect_protocol_error(raw, "has none from that end");
}

// The reply is here, but an item before it still waits for memory of the user's, so the call goes on.
TEST(StreamEnds, AReplyWakesASenderThatWaitsForRoom) {
  RawWorld raw(Role::kClient, RawPeer::offer(), small_windows());
  raw.peer.send(kHello, hello_with_window("4,1000"));
  raw.run();
  const ClientCallRef call = start_stream(raw);
  raw.run();
  Streams& streams = raw.session().streams();
  const Stream& stream = *call->stream();
  streams.land_by_hand(call->stream());
  OutgoingItem outgoing{as_bytes("x")};
  while (streams.send(call->stream(), outgoing).value()) {
  }
  EXPECT_FALSE(stream.has_come(Awaited::kRoom));
  const uint32_t room_changes = stream.room_changes();
  int told = 0;
  raw.world.client.stream_changed = [&](const StreamRef&) { told += stream.room_changes() != room_changes ? 1 : 0; };
  const auto [address, rkey] = raw.peer.expose_some();
  raw.peer.send(kItem, item(1 | kAnsweringBit, 0, 0, "x", {{address, 100, rkey}}));
  raw.run();
  ASSERT_TRUE(stream.wants_memory());
  EXPECT_EQ(told, 0);
  raw.peer.send(kReply, reply_body(1));
  raw.run();
  ASSERT_FALSE(call->done());
  EXPECT_GT(told, 0) << "a thread that sleeps for room sleeps on";
  EXPECT_TRUE(stream.has_come(Awaited::kRoom)) << "an event loop's task isn't told";
  const Status refused = streams.send(call->stream(), outgoing).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.to_string();
  EXPECT_NE(refused.message().find("the call has ended"), std::string::npos) << refused.to_string();
}

// Its reply had come and said that all is well, an item had not: it waited for another call's to be read.
TEST(StreamEnds, ACallWhoseItemsWereOnTheirWayHasTheErrorOfItsConnection) {
  SessionOptions options = small_windows();
  options.geometry.read_depth = 1;
  RawWorld raw(Role::kClient, RawPeer::offer(), options);
  raw.world.network.plan().late_read_probability = 1;
  raw.world.network.plan().late_read_delay_ns_max = 1000 * kSecond;
  raw.peer.send(kHello, hello_with_window("4,1000"));
  raw.run();
  const std::vector<ClientCallRef> calls = {start_stream(raw), start_stream(raw)};
  raw.run();
  for (const uint64_t id : {2, 1}) {
    const auto [address, rkey] = raw.peer.expose_some();
    raw.peer.send(kItem, item(id | kAnsweringBit, 0, 0, "x", {{address, 100, rkey}}));
    raw.peer.send(kReply, reply_body(id));
    raw.run();
    ASSERT_FALSE(calls[id - 1]->done());
  }
  raw.session().close(unavailable("the client leaves"));
  raw.run();
  for (const ClientCallRef& call : calls) {
    ASSERT_TRUE(call->done());
    EXPECT_EQ(call->status().code(), StatusCode::kUnavailable) << call->status().to_string();
    EXPECT_TRUE(call->stream()->ended());
  }
}

// An error's reply had come, an item before it had not.
TEST(StreamEnds, WhatAReplySaidIsNotTakenForWhatEndsTheCallInItsPlace) {
  enum class By : uint8_t { kCancel, kConnection };
  for (const By by : {By::kCancel, By::kConnection}) {
    RawWorld raw(Role::kClient, RawPeer::offer(), small_windows());
    raw.peer.send(kHello, hello_with_window("4,1000"));
    raw.run();
    const ClientCallRef call = start_stream(raw);
    raw.run();
    raw.session().streams().land_by_hand(call->stream());
    const auto [address, rkey] = raw.peer.expose_some();
    raw.peer.send(kItem, item(1 | kAnsweringBit, 0, 0, "x", {{address, 100, rkey}}));
    ReplyFixed failed;
    failed.call_id = 1;
    failed.status = static_cast<uint8_t>(StatusCode::kNotFound);
    raw.peer.send(kReply, reply_body(failed, {}, "details"));
    raw.run();
    ASSERT_FALSE(call->done()) << "its item is still to be fetched";
    if (by == By::kCancel)
      raw.session().client().cancel(call, cancelled("enough"));
    else
      raw.session().close(unavailable("the client leaves"));
    ASSERT_TRUE(call->done());
    EXPECT_EQ(call->status().code(), by == By::kCancel ? StatusCode::kCancelled : StatusCode::kUnavailable);
    EXPECT_EQ(call->details(), "");
  }
}

}  // namespace
}  // namespace rrpc::rpc
