// What ends calls that nobody takes or waits for, or that can't be sent or answered, between two sessions.
#include "raw_peer.h"
#include "tampering.h"

namespace rrpc::rpc {
namespace {

SessionOptions with_slots(uint32_t slots) {
  SessionOptions options;
  options.geometry.slots = slots;
  return options;
}

TEST(SessionCalls, AGoAwayEndsCallsThatWereNeverSentAndIsAnswered) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  world.connect(with_slots(16), with_slots(16));
  world.server.dead = true;  // gives no credits
  std::vector<ClientCallRef> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(std::make_shared<ClientCall>());
    ASSERT_TRUE(world.client.session->client().start(calls.back(), {"m", {}, {}, std::nullopt, kNever}, 0).ok());
  }
  world.server.session->drain("shutting down");
  world.client.pump(world.network.now());
  world.run_for(kMillisecond);
  size_t unsent = 0;
  for (const ClientCallRef& call : calls) {
    if (!call->done()) continue;
    ++unsent;
    EXPECT_EQ(call->status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(call->not_executed());
  }
  EXPECT_GT(unsent, 0u);
  EXPECT_FALSE(world.server.session->drained());
  world.server.dead = false;
  world.run_for(kMillisecond);
  EXPECT_TRUE(world.server.session->drained());
  for (const ClientCallRef& call : calls) {  // the others came after the drain had begun
    ASSERT_TRUE(call->done());
    EXPECT_TRUE(call->not_executed()) << call->status().to_string();
  }
  EXPECT_TRUE(running.empty());
}

TEST(SessionCalls, AHandlerIsToldOnceThatNobodyWaits) {
  World world(1);
  std::vector<ServerCallRef> running;
  int told = 0;
  world.server.request = [&](const ServerCallRef& call) {
    call->on_given_up([&told] { ++told; });
    running.push_back(call);
  };
  world.connect({}, {});
  auto& client = world.client.session->client();
  std::vector<ClientCallRef> calls;
  const auto start = [&](TimeNs timeout) {
    calls.push_back(std::make_shared<ClientCall>());
    const TimeNs now = world.network.now();
    ASSERT_TRUE(client.start(calls.back(), {"m", {}, {}, std::nullopt, deadline_after(now, timeout)}, now).ok());
    world.run_for(kMillisecond);
  };
  start(kNever);
  EXPECT_EQ(told, 0);
  client.cancel(calls.back(), cancelled("by the test"));
  world.run_for(kMillisecond);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(running.back()->given_up() && running.back()->cancelled());

  start(50 * kMillisecond);
  world.client.dead = true;  // says nothing more
  world.run_for(100 * kMillisecond);
  EXPECT_EQ(told, 2) << "at the deadline, without a CANCEL";
  EXPECT_TRUE(running.back()->given_up() && !running.back()->cancelled());
  world.client.dead = false;
  world.run_for(kMillisecond);
  EXPECT_EQ(calls.back()->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(running.back()->cancelled());
  EXPECT_EQ(world.client.session->client().calls_in_flight(), 0u) << "the CANCEL is acknowledged all the same";

  start(kNever);
  world.server.session->server().reply(running.back(), {}, world.network.now());
  world.run_for(kMillisecond);
  EXPECT_TRUE(calls.back()->status().ok());
  start(kNever);
  world.client.session->close(unavailable("gone"));
  world.run_for(kMillisecond);
  EXPECT_EQ(told, 3) << "of the connection's end, but not of the call that was answered";
}

TEST(SessionCalls, WhatAHandlerGivesThatWasToldToStopIsNoResult) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  world.connect({}, {});
  const auto call = std::make_shared<ClientCall>();
  const TimeNs deadline = deadline_after(world.network.now(), 50 * kMillisecond);
  ASSERT_TRUE(
      world.client.session->client().start(call, {"m", {}, {}, std::nullopt, deadline}, world.network.now()).ok());
  world.run_for(kMillisecond);
  world.client.dead = true;  // held up: it finds the reply and its deadline passed, in this order
  world.run_for(100 * kMillisecond);
  ASSERT_TRUE(running.back()->given_up());
  world.server.session->server().reply(running.back(), {}, world.network.now());
  world.run_for(kMillisecond);
  world.client.dead = false;
  world.run_for(kMillisecond);
  EXPECT_EQ(call->status().code(), StatusCode::kDeadlineExceeded);
}

TEST(SessionCalls, ADeadlineIsNamedTheSameWhicheverEndSeesItFirst) {
  World world(1);
  world.server.request = [](const ServerCallRef&) {};
  world.server.waits = [](const ServerCallRef&) { return true; };
  world.connect({}, {});
  for (const bool held_up : {false, true}) {
    const auto call = std::make_shared<ClientCall>();
    const TimeNs deadline = deadline_after(world.network.now(), 50 * kMillisecond);
    ASSERT_TRUE(
        world.client.session->client().start(call, {"m", {}, {}, std::nullopt, deadline}, world.network.now()).ok());
    world.run_for(kMillisecond);
    world.client.dead = held_up;
    world.run_for(100 * kMillisecond);
    world.client.dead = false;
    world.run_for(kMillisecond);
    ASSERT_TRUE(call->done());
    const std::string named = "m() was not done within its timeout of 0.05 s";
    EXPECT_EQ(call->status().message(), held_up ? named + ": no worker was free before its deadline" : named);
  }
}

TEST(SessionCalls, RepliesThatWaitForCreditsBackAConnectionUp) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  world.connect({}, {});
  std::vector<ClientCallRef> calls;
  for (size_t i = 0; i < 400; ++i) {
    calls.push_back(std::make_shared<ClientCall>());
    ASSERT_TRUE(
        world.client.session->client().start(calls.back(), {"m", {}, {}, std::nullopt}, world.network.now()).ok());
  }
  world.run_for(10 * kMillisecond);
  ASSERT_EQ(running.size(), calls.size());
  world.client.dead = true;  // and gives no credits
  ServerSide& server = world.server.session->server();
  size_t answered = 0;
  for (const ServerCallRef& call : running) {
    if (server.backed_up()) break;
    server.reply(call, {}, world.network.now());
    ++answered;
  }
  EXPECT_GT(answered, 256u);
  EXPECT_LT(answered, calls.size());
  EXPECT_EQ(world.server.replies_taken, 0u);
  world.client.dead = false;
  world.run_for(10 * kMillisecond);
  EXPECT_FALSE(server.backed_up());
  EXPECT_EQ(world.server.replies_taken, 1u);
  EXPECT_EQ(std::ranges::count_if(calls, [](const auto& call) { return call->done(); }), answered);
}

TEST(SessionCalls, ALongReplyToACancelledCallTakesNoMemory) {
  RawWorld raw(Role::kClient);
  raw.peer.send(kHello, hello());
  raw.run();
  const ClientCallRef call = raw.start_call();
  raw.run();
  raw.session().client().cancel(call, cancelled("by the test"));
  client_pool().trim();
  const size_t committed = client_pool().committed_bytes();
  raw.peer.send(kReplyBulk, bytes_of(BulkBody{1, 0x10000, 32 << 20, 1, 0}));  // it crosses the cancel
  const auto messages = raw.run();
  EXPECT_EQ(client_pool().committed_bytes(), committed);
  EXPECT_EQ(raw.session().client().calls_in_flight(), 0u);
  EXPECT_EQ(call->status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(std::ranges::any_of(messages, [](const auto& message) { return message.header.type == kDone; }))
      << "the server keeps the reply until its lease ends";
}

// A client's word for it that a deadline has passed is taken where it may be so.
TEST(SessionCalls, ACallIsLateIfItsClientSaysSoALittleEarly) {
  RawWorld raw(Role::kServer);
  raw.peer.send(kHello, hello());
  RequestParts parts;
  parts.timeout_ns = 200 * kMillisecond;
  raw.peer.send(kRequest, request_body(parts));
  parts.call_id = 2;
  parts.timeout_ns = 10 * kSecond;
  raw.peer.send(kRequest, request_body(parts));
  raw.peer.send(kRequest, request_body(3));  // without a deadline
  raw.peer.send(kRequest, request_body(4));
  raw.run();
  ASSERT_EQ(raw.requests.size(), 4u);
  const auto late = [&raw](size_t index) { return raw.requests[index]->late(raw.world.network.now()); };
  for (size_t index = 0; index < 4; ++index) EXPECT_FALSE(late(index));
  raw.peer.send(kCancel, ids({1 | kDeadlineBit, 2 | kDeadlineBit, 3 | kDeadlineBit, 4}));
  raw.run();
  for (const ServerCallRef& call : raw.requests) EXPECT_TRUE(call->given_up());
  EXPECT_TRUE(late(0));
  for (size_t index = 1; index < 4; ++index) EXPECT_FALSE(late(index)) << index;
}

// Whether or not the reply could go at once.
// A call that the server has had time to take, or to refuse.
ClientCallRef begun(World& world) {
  const auto call = std::make_shared<ClientCall>();
  EXPECT_TRUE(world.client.session->client().start(call, {"m", {}, {}, std::nullopt}, world.network.now()).ok());
  world.run_for(kMillisecond);
  return call;
}

TEST(SessionCalls, AServerIsToBeWokenForDoneWhereItsMemoryIsWanted) {
  constexpr size_t kExposedLimit = 8 << 20;
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  SessionOptions options;
  options.budgets = std::make_shared<Budgets>(kExposedLimit, kExposedLimit, kExposedLimit);
  world.connect({}, options);
  Session& server = *world.server.session;
  std::vector<std::byte> result(kExposedLimit / 8);
  const std::vector calls{begun(world), begun(world), begun(world)};
  ASSERT_EQ(running.size(), calls.size());
  const auto reply = [&](size_t index, size_t bytes) {
    Reply made;
    made.buffers.push_back({result.data(), bytes, 0, nullptr, {}});
    server.server().reply(running[index], std::move(made), world.network.now());
  };
  world.client.dead = true;  // it reads nothing for a while
  reply(0, result.size() / 2);
  EXPECT_FALSE(server.must_be_armed());
  reply(1, result.size());
  EXPECT_TRUE(server.must_be_armed());
  world.client.dead = false;
  world.run_for(10 * kMillisecond);
  EXPECT_FALSE(server.must_be_armed()) << "nothing is kept";
  world.client.dead = true;
  reply(2, 1);
  EXPECT_FALSE(server.must_be_armed());
  server.drain("the test is nearly over");
  EXPECT_TRUE(server.must_be_armed());
  world.client.dead = false;
  world.run_for(10 * kMillisecond);
  EXPECT_EQ(std::ranges::count_if(calls, [](const auto& call) { return call->done(); }), 3);
}

// Of the messages that a client posts, those that need not be seen at once.
class UnsolicitedCounted : public TamperedQueuePair {
 public:
  UnsolicitedCounted(std::unique_ptr<provider::QueuePair> inner, provider::Device& device, size_t& count)
      : TamperedQueuePair(std::move(inner), device, std::make_shared<Attacker>(1, Attack::kFlip, 0), false),
        count_(count) {}
  Status post_send(std::span<const provider::WorkRequest> requests) override {
    count_ += static_cast<size_t>(
        std::ranges::count_if(requests, [](const provider::WorkRequest& request) { return !request.solicited; }));
    return TamperedQueuePair::post_send(requests);
  }

 private:
  size_t& count_;
};

// There is room for a few messages of control only, and a CANCEL isn't to wait for it.
TEST(SessionCalls, OneDoneAtMostLiesThereUntilTheServerLooks) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  size_t unsolicited = 0;
  world.wrap = [&](SessionEnd& end, std::unique_ptr<provider::QueuePair> qp) -> std::unique_ptr<provider::QueuePair> {
    if (&end == &world.server) return qp;
    return std::make_unique<UnsolicitedCounted>(std::move(qp), *end.device, unsolicited);
  };
  world.connect({}, {});
  const std::vector calls{begun(world), begun(world), begun(world)};
  ASSERT_EQ(running.size(), calls.size());
  std::vector<std::byte> result(4 << 20);
  for (size_t i = 0; i < running.size(); ++i) {  // which are read one after the other
    Reply made;
    made.buffers.push_back({result.data(), result.size() >> (4 * (2 - i)), 0, nullptr, {}});
    world.server.session->server().reply(running[i], std::move(made), world.network.now());
  }
  world.server.dead = true;  // it sleeps
  const auto done = [&] { return std::ranges::all_of(calls, [](const auto& call) { return call->done(); }); };
  EXPECT_TRUE(world.run_until(done, world.network.now() + kSecond));
  EXPECT_EQ(world.client.session->endpoint().control_credits().out, 3u);
  EXPECT_EQ(unsolicited, 1u);
  world.server.dead = false;
  world.run_for(10 * kMillisecond);
  EXPECT_LT(world.client.session->endpoint().control_credits().out, 3u);
}

TEST(SessionCalls, AShortReplyIsHeldToItsLimitToo) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  SessionOptions options;
  options.message_bytes_max = 100;
  world.connect({}, options);
  for (const size_t bytes : {100u, 101u}) {
    const ClientCallRef call = begun(world);
    const std::string payload(bytes, 'p');
    world.server.session->server().reply(running.back(), {.payload = as_bytes(payload)}, world.network.now());
    world.run_for(kMillisecond);
    ASSERT_TRUE(call->done());
    if (bytes == 100) {
      EXPECT_TRUE(call->status().ok()) << call->status().to_string();
      continue;
    }
    EXPECT_EQ(call->status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(call->status().message().find("message_bytes_max: the reply has 101 bytes"), std::string::npos)
        << call->status().to_string();
    EXPECT_EQ(running.back()->outcome().code(), StatusCode::kResourceExhausted);
  }
}

TEST(SessionCalls, WhoMayNotCallIsToldSoWhateverElseIsInTheWay) {
  World world(1);
  std::vector<ServerCallRef> running;
  world.server.request = [&running](const ServerCallRef& call) { running.push_back(call); };
  SessionOptions options;
  options.calls_in_flight_max = 1;
  world.connect({}, options);
  const ClientCallRef first = begun(world);
  ASSERT_FALSE(first->done());
  EXPECT_EQ(begun(world)->status().code(), StatusCode::kResourceExhausted);
  world.server.denied = permission_denied("not for this peer");
  EXPECT_EQ(begun(world)->status().code(), StatusCode::kPermissionDenied);
}

// The queue pair refuses the send. Of others nobody can tell how much of it the server has got.
TEST(SessionCalls, ACallThatTheConnectionBrokeOnMayHaveRun) {
  FaultPlan plan;
  plan.limits_max.message_bytes_max = 500;
  World world(1, plan);
  world.connect({}, {});
  const Holdings before = Holdings::now();
  const auto call = std::make_shared<ClientCall>();
  const std::string payload(600, 'p');
  const Status status =
      world.client.session->client().start(call, {"m", as_bytes(payload), {}, std::nullopt}, world.network.now());
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(world.client.failed());
  EXPECT_FALSE(call->not_executed()) << "whoever trusts that sends it again";
  EXPECT_EQ(world.client.session->client().calls_in_flight(), 0u);
  EXPECT_EQ(Holdings::now(), before);

  const auto next = std::make_shared<ClientCall>();
  EXPECT_FALSE(world.client.session->client().start(next, {"m", {}, {}, std::nullopt}, world.network.now()).ok());
  EXPECT_TRUE(next->not_executed()) << "the connection had failed before";
}

}  // namespace
}  // namespace rrpc::rpc
