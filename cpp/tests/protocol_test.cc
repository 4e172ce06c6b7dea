// Hand-made peers: every malformed message or sequence closes its connection with an error that names the fault.
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

void expect_protocol_error(RawWorld& raw, const std::string& text) {
  ASSERT_TRUE(raw.end().session);
  ASSERT_TRUE(raw.end().closed) << "the session let it pass";
  EXPECT_TRUE(raw.end().closed_with.is_protocol_error()) << raw.end().closed_with.to_string();
  EXPECT_NE(raw.end().closed_with.message().find(text), std::string::npos) << raw.end().closed_with.to_string();
  EXPECT_EQ(raw.world.network.violations(), std::vector<std::string>());
}

endpoint::Descriptor somewhere(uint64_t length_bytes) { return {0x10000, length_bytes, 1}; }

const Fault kServerFaults[] = {
    {"RequestBeforeHello", "before HELLO", [](RawWorld& raw) { raw.peer.send(kRequest, request_body(1)); }},
    {"PingBeforeHello", "before HELLO", [](RawWorld& raw) { raw.peer.send(kPing, ""); }},
    {"SecondHello", "a second HELLO",
     [](RawWorld& raw) {
       raw.peer.send(kHello, hello());
       raw.peer.send(kHello, hello());
     }},
    {"TruncatedHello", "truncated HELLO", [](RawWorld& raw) { raw.peer.send(kHello, hello() + "\x09"); }},
    {"HelloOfManyFields", "too many fields",
     [](RawWorld& raw) {
       HelloFields fields;
       for (int i = 0; i < 65; ++i) fields[std::to_string(i)] = "";
       raw.peer.send(kHello, encode_hello(fields));
     }},
    {"ShorterThanAHeader", "shorter than its header", [](RawWorld& raw) { raw.peer.send_bytes("rr"); }},
    {"WrongMagic", "wrong magic",
     [](RawWorld& raw) {
       auto header = raw.peer.header(kHello, 0);
       header.magic = 0x4547;
       raw.peer.send(header, "");
     }},
    {"WrongEpoch", "another connection's epoch",
     [](RawWorld& raw) {
       auto header = raw.peer.header(kHello, 0);
       header.epoch = 7;
       raw.peer.send(header, "");
     }},
    {"BodyLengthMismatch", "announces a body of",
     [](RawWorld& raw) { raw.peer.send(raw.peer.header(kHello, 5), "four"); }},
    {"HugeBodyLength", "announces a body of",
     [](RawWorld& raw) { raw.peer.send(raw.peer.header(kHello, 0xffffffff), ""); }},
    {"TypePastAll", "unknown message type 200", [](RawWorld& raw) { raw.peer.send(200, ""); }},
    {"DataCreditsNeverEarned", "data credits",
     [](RawWorld& raw) {
       auto header = raw.peer.header(kHello, 0);
       header.data_granted = 1;
       raw.peer.send(header, "");
     }},
    {"ControlCreditsNeverEarned", "control credits",
     [](RawWorld& raw) {
       auto header = raw.peer.header(endpoint::kCreditType, 0);
       header.control_granted = 0xfffffff0;
       raw.peer.send(header, "");
     }},
};

const Fault kServerFaultsAfterHello[] = {
    {"CreditsTakenBack", "credits",
     [](RawWorld& raw) {
       auto header = raw.peer.header(endpoint::kCreditType, 0);
       header.data_granted = 0;  // the server's HELLO was granted already
       --header.data_granted;
       raw.peer.send(header, "");
     }},
    {"UnknownData", "unknown message type 40", [](RawWorld& raw) { raw.peer.send(40, ""); }},
    {"UnknownControl", "unknown message type 90", [](RawWorld& raw) { raw.peer.send(90, ""); }},
    {"ReplyToAServer", "only the other end may send", [](RawWorld& raw) { raw.peer.send(kReply, reply_body(1)); }},
    {"CancelAckToAServer", "only the other end may send", [](RawWorld& raw) { raw.peer.send(kCancelAck, ids({1})); }},
    {"GoAwayToAServer", "only the other end may send", [](RawWorld& raw) { raw.peer.send(kGoAway, "why"); }},
    {"AnswerToNoGoAway", "a GOAWAY that never was", [](RawWorld& raw) { raw.peer.send(kGoAwayAck, ""); }},
    {"TruncatedRequest", "truncated request", [](RawWorld& raw) { raw.peer.send(kRequest, "abc"); }},
    {"RequestCutInItsFixedPart", "truncated request",
     [](RawWorld& raw) { raw.peer.send(kRequest, request_body(1).substr(0, 20)); }},
    {"RequestWithoutItsMethod", "truncated request",
     [](RawWorld& raw) {
       RequestFixed fixed;
       fixed.call_id = 1;
       fixed.method_bytes = 10;
       raw.peer.send(kRequest, bytes_of(fixed) + "short");
     }},
    {"CallIdZero", "call id 0", [](RawWorld& raw) { raw.peer.send(kRequest, request_body(0)); }},
    {"CallIdOfAServer", "call id", [](RawWorld& raw) { raw.peer.send(kRequest, request_body(1ULL << 63)); }},
    {"CallIdOfAnItem", "call id", [](RawWorld& raw) { raw.peer.send(kRequest, request_body(1ULL << 62)); }},
    {"DuplicateCallId", "call id 5 after 5",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(5));
       raw.peer.send(kRequest, request_body(5));
     }},
    {"OlderCallId", "call id 4 after 5",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(5));
       raw.peer.send(kRequest, request_body(4));
     }},
    {"UnknownRequestFlags", "unknown flags 8",
     [](RawWorld& raw) {
       RequestFixed fixed;
       fixed.call_id = 1;
       fixed.flags = 8;
       raw.peer.send(kRequest, bytes_of(fixed) + std::string(100, 'x'));
     }},
    {"MetadataPastTheRequest", "truncated request",
     [](RawWorld& raw) {
       RequestFixed fixed;
       fixed.call_id = 1;
       fixed.metadata_bytes = 101;
       raw.peer.send(kRequest, bytes_of(fixed) + std::string(100, 'x'));
     }},
    {"DescriptorsMissing", "truncated",
     [](RawWorld& raw) {
       RequestFixed fixed;
       fixed.call_id = 1;
       fixed.descriptor_count = 5000;
       raw.peer.send(kRequest, bytes_of(fixed));
     }},
    {"DescriptorOfImpossibleLength", "bad descriptor",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(std::vector<endpoint::Descriptor>{somewhere(1ULL << 41)}));
     }},
    {"DescriptorsOfImpossibleTotal", "bad descriptor",
     [](RawWorld& raw) {
       raw.peer.send(kRequest,
                     request_body(std::vector<endpoint::Descriptor>{somewhere(1ULL << 40), somewhere(1ULL << 40)}));
     }},
    {"DescriptorThatWraps", "wraps around",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(std::vector<endpoint::Descriptor>{{~0ULL - 10, 100, 1}}));
     }},
    {"PiecesThatDoNotEnd", "don't end",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(std::vector<endpoint::Descriptor>{{0, 5, 1, true}, {5, 5, 1, true}}));
     }},
    {"PiecesOfImpossibleTotal", "bad descriptor",
     [](RawWorld& raw) {
       raw.peer.send(kRequest,
                     request_body(std::vector<endpoint::Descriptor>{{0, 1ULL << 40, 1, true}, {0, 1ULL << 40, 1}}));
     }},
    {"OutMemoryInPieces", "don't end",
     [](RawWorld& raw) {
       RequestParts parts;
       parts.has_out = true;
       parts.descriptors = {{0, 5, 1, true}, {5, 5, 1}};
       raw.peer.send(kRequest, request_body(parts));
     }},
    {"EmptyBulkRequest", "bad descriptor",
     [](RawWorld& raw) { raw.peer.send(kRequestBulk, bytes_of(BulkBody{1, 0x1000, 0, 1, 0})); }},
    {"TruncatedBulkRequest", "truncated bulk", [](RawWorld& raw) { raw.peer.send(kRequestBulk, ids({1, 2})); }},
    {"CancelOfAFutureCall", "cancel of call 9, which never came",
     [](RawWorld& raw) { raw.peer.send(kCancel, ids({9})); }},
    {"CancelOfNothing", "truncated call id list", [](RawWorld& raw) { raw.peer.send(kCancel, ""); }},
    {"CancelOfHalfAnId", "truncated call id list", [](RawWorld& raw) { raw.peer.send(kCancel, "1234"); }},
    {"DoneOfAFutureCall", "DONE for call 9, which never came", [](RawWorld& raw) { raw.peer.send(kDone, ids({9})); }},
    {"DoneBeforeTheReply", "before its reply",
     [](RawWorld& raw) {
       raw.peer.send(kRequest, request_body(1));
       raw.peer.send(kDone, ids({1}));
     }},
    {"MoreDataThanCredits", "more data messages than it had credits for",
     [](RawWorld& raw) {
       for (uint64_t id = 1; id <= 12; ++id) raw.peer.send(kRequest, request_body(id));
       raw.arrive_together();
     }},
    {"MoreControlThanCredits", "more control messages than it had credits for",
     [](RawWorld& raw) {
       for (int i = 0; i < 6; ++i) raw.peer.send(kPong, "");
       raw.arrive_together();
     }},
};

class ServerFault : public testing::TestWithParam<Fault> {};
TEST_P(ServerFault, Closes) {
  RawWorld raw(Role::kServer);
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
}
class ServerFaultAfterHello : public testing::TestWithParam<Fault> {};
TEST_P(ServerFaultAfterHello, Closes) {
  SessionOptions options;
  options.geometry.slots = 16;
  RawWorld raw(Role::kServer, RawPeer::offer(), options);
  raw.peer.send(kHello, hello());
  raw.run();
  ASSERT_TRUE(raw.end().ready);
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
}

const Fault kClientFaults[] = {
    {"ReplyBeforeHello", "before HELLO", [](RawWorld& raw) { raw.peer.send(kReply, reply_body(1)); }},
    {"RequestToAClient", "only the other end may send",
     [](RawWorld& raw) {
       raw.peer.send(kHello, hello());
       raw.peer.send(kRequest, request_body(1));
     }},
    {"GoAwayAckToAClient", "only the other end may send",
     [](RawWorld& raw) {
       raw.peer.send(kHello, hello());
       raw.peer.send(kGoAwayAck, "");
     }},
    {"DoneToAClient", "only the other end may send",
     [](RawWorld& raw) {
       raw.peer.send(kHello, hello());
       raw.peer.send(kDone, ids({1}));
     }},
};

// After HELLO, with one call under way, whose id is 1.
const Fault kReplyFaults[] = {
    {"UnknownCall", "a reply to call 7", [](RawWorld& raw) { raw.peer.send(kReply, reply_body(7)); }},
    {"SecondReply", "a reply to call 1",
     [](RawWorld& raw) {
       raw.peer.send(kReply, reply_body(1));
       raw.peer.send(kReply, reply_body(1));
     }},
    {"ReplyWhileItsResultIsFetched", "a second reply",
     [](RawWorld& raw) {
       const auto address = reinterpret_cast<uint64_t>(raw.peer.region().range().address);
       const uint32_t rkey =
           raw.peer.qp()
               .expose(raw.peer.region(), raw.peer.region().range().address, 1000, provider::kRemoteRead)
               .value();
       ReplyFixed fixed;
       fixed.call_id = 1;
       raw.peer.send(kReply, reply_body(fixed, {{address, 1000, rkey}}));
       raw.peer.send(kReply, reply_body(1));
     }},
    {"BulkReplyToUnknownCall", "a reply to call 7",
     [](RawWorld& raw) { raw.peer.send(kReplyBulk, bytes_of(BulkBody{7, 0x1000, 10, 1, 0})); }},
    {"EmptyBulkReply", "bad descriptor",
     [](RawWorld& raw) { raw.peer.send(kReplyBulk, bytes_of(BulkBody{1, 0x1000, 0, 1, 0})); }},
    {"TruncatedReply", "truncated reply", [](RawWorld& raw) { raw.peer.send(kReply, reply_body(1).substr(0, 12)); }},
    {"UnknownStatus", "unknown status",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.status = 99;
       raw.peer.send(kReply, reply_body(fixed));
     }},
    {"OutIndexPastItsDescriptors", "out index",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.out_index = 3;
       raw.peer.send(kReply, reply_body(fixed, {somewhere(10)}));
     }},
    {"OutIndexPastItsBuffers", "out index",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.out_index = 1;
       raw.peer.send(kReply, reply_body(fixed, {{0, 5, 1, true}, {5, 5, 1}}));
     }},
    {"OutThatWasNotOffered", "not offered",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.out_index = 0;
       fixed.flags = kOutWritten;
       raw.peer.send(kReply, reply_body(fixed, {somewhere(10)}));
     }},
    {"UnknownReplyFlags", "unknown flags 4",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.flags = 4;
       raw.peer.send(kReply, reply_body(fixed));
     }},
    {"MetadataPastTheReply", "truncated reply",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.metadata_bytes = 6;
       raw.peer.send(kReply, reply_body(fixed, {}, "short"));
     }},
    {"MessageLongerThanTheReply", "truncated reply",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       fixed.status = 3;
       fixed.message_bytes = 4000000000;
       raw.peer.send(kReply, reply_body(fixed, {}, "short"));
     }},
    {"DescriptorThatWraps", "wraps around",
     [](RawWorld& raw) {
       ReplyFixed fixed;
       fixed.call_id = 1;
       raw.peer.send(kReply, reply_body(fixed, {{~0ULL, 100, 1}}));
     }},
    {"AckOfACallThatNeverWas", "call that never was", [](RawWorld& raw) { raw.peer.send(kCancelAck, ids({2})); }},
};

class ClientFault : public testing::TestWithParam<Fault> {};
TEST_P(ClientFault, Closes) {
  RawWorld raw(Role::kClient);
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
}
class ReplyFault : public testing::TestWithParam<Fault> {};
TEST_P(ReplyFault, ClosesAndFailsTheCall) {
  RawWorld raw(Role::kClient);
  raw.peer.send(kHello, hello());
  raw.run();
  const ClientCallRef call = raw.start_call();
  raw.run();
  GetParam().script(raw);
  raw.run();
  expect_protocol_error(raw, GetParam().expected);
  EXPECT_TRUE(call->done());
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Protocol, ServerFault, testing::ValuesIn(kServerFaults), kName);
INSTANTIATE_TEST_SUITE_P(Protocol, ServerFaultAfterHello, testing::ValuesIn(kServerFaultsAfterHello), kName);
INSTANTIATE_TEST_SUITE_P(Protocol, ClientFault, testing::ValuesIn(kClientFaults), kName);
INSTANTIATE_TEST_SUITE_P(Protocol, ReplyFault, testing::ValuesIn(kReplyFaults), kName);

struct BadOffer {
  const char* name;
  const char* expected;
  endpoint::Offer offer;
};
std::ostream& operator<<(std::ostream& out, const BadOffer& offer) { return out << offer.name; }
class Offered : public testing::TestWithParam<BadOffer> {};
TEST_P(Offered, IsRefused) {
  for (const Role role : {Role::kServer, Role::kClient}) {
    RawWorld raw(role, GetParam().offer);
    expect_protocol_error(raw, GetParam().expected);
  }
}
endpoint::Offer offer_with(void (*change)(endpoint::Offer&)) {
  endpoint::Offer offer = RawPeer::offer();
  change(offer);
  return offer;
}
// A server that knows the offer when it accepts rejects it there, and the client is told why.
TEST_P(Offered, IsRejectedWhereItIsKnownBeforehand) {
  FaultPlan plan;
  plan.offer_known_at_accept = true;
  World world(1, plan);
  RawPeer peer(world, "client");
  peer.dial(GetParam().offer);
  Status started;
  while (started.ok() && world.network.step()) {
    auto cq = world.server.device->create_completion_queue(1024);
    auto qp = world.listener->accept(*cq, endpoint::queue_pair_config({})).value();
    if (!qp) continue;
    Session session(Role::kServer, {*world.server.device, server_pool(), world.server.registrations}, std::move(cq),
                    std::move(qp), {}, 1, {}, world.server);
    started = session.start(0);
    world.network.run_for(kMillisecond);
  }
  EXPECT_TRUE(started.is_protocol_error());
  EXPECT_NE(started.message().find(GetParam().expected), std::string::npos) << started.to_string();
  EXPECT_EQ(peer.qp().error().message(), "connection to server:1 refused: " + started.message());
  EXPECT_EQ(world.network.violations(), std::vector<std::string>());
}

const BadOffer kBadOffers[] = {
    {"Magic", "wrong magic", offer_with([](endpoint::Offer& offer) { offer.magic = 0; })},
    {"Version", "wire version 2", offer_with([](endpoint::Offer& offer) { offer.version = 2; })},
    {"NoSlots", "impossible ring", offer_with([](endpoint::Offer& offer) { offer.slots = 0; })},
    {"ManySlots", "impossible ring", offer_with([](endpoint::Offer& offer) { offer.slots = 1u << 31; })},
    {"OddSlots", "impossible ring", offer_with([](endpoint::Offer& offer) { offer.slots = 33; })},
    {"TinySlots", "impossible ring", offer_with([](endpoint::Offer& offer) { offer.slot_bytes = 64; })},
    {"HugeSlots", "impossible ring", offer_with([](endpoint::Offer& offer) { offer.slot_bytes = 1u << 30; })},
    {"CutShort", "cut short", offer_with([](endpoint::Offer& offer) { offer.slot_bytes = offer.epoch = 0; })},
};
INSTANTIATE_TEST_SUITE_P(Protocol, Offered, testing::ValuesIn(kBadOffers), kName);

}  // namespace
}  // namespace rrpc::rpc
