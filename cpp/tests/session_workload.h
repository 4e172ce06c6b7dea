// A random workload between two sessions, one way or both, and what must hold of it whatever happens.
#pragma once

#include <map>
#include <optional>
#include <sstream>

#include "session_world.h"

namespace rrpc::rpc {

enum Part : uint64_t {
  kMethodPart,
  kPayloadPart,
  kDetailsPart,
  kMetadataPart,
  kArgumentPart = 100,
  kResultPart = 200,
  kOutPart = 300
};

struct CallPlan {
  uint64_t key = 0;
  size_t payload_bytes = 0;
  size_t metadata_bytes = 0;  // both ways
  std::vector<size_t> argument_bytes;
  size_t out_bytes = 0;  // of the caller's memory for the last result buffer; 0: none
  bool fails = false;
  size_t reply_bytes = 0;
  std::vector<size_t> result_bytes;
  TimeNs handler_ns = 0;
  TimeNs timeout = kNever;

  ClientCallRef call;
  TestHold* out_memory = nullptr;
  bool started = false;
  bool cancelled = false;
  CallPlan* next = nullptr;    // started when this one ends
  CallPlan* rival = nullptr;   // cancelled when this one ends
  CallPlan* nested = nullptr;  // of the other direction: made by this one's handler, which waits for it
  std::function<void()> then;  // of a nested one
  bool follows = false;        // isn't started on its own
  int served = 0;
  int ended = 0;
};

// What a seed may do; the test families choose.
struct Scenario {
  FaultPlan plan;
  SessionOptions client;
  SessionOptions server;
  int call_count = 20;
  TimeNs calls_over_ns = kMillisecond;
  size_t buffer_bytes_max = 20000;
  double cancel_probability = 0;
  double deadline_probability = 0;
  double error_probability = 0.1;
  double lazy_probability = 0;
  bool both_ways = false;  // the client serves too
  double nested_probability = 0;
  uint32_t shared_receive_slots = 0;
  bool may_refuse = false;  // limits are low: calls may end with ResourceExhausted
  bool drains = false;      // the server; whatever it doesn't take was not executed
  bool may_break = false;   // the connection may end: calls may end with Unavailable
  bool may_tamper = false;  // somebody does: the connection may end with a protocol error
  std::function<void(World&)> disturb;
};

// How calls ended, over all seeds: a family that never gets where it means to go proves nothing.
inline std::map<StatusCode, int>& outcomes() {
  static std::map<StatusCode, int> counts;
  return counts;
}

// The calls of one direction.
class Workload {
 public:
  Workload(World& world, const Scenario& scenario, SessionEnd& caller, SessionEnd& answerer)
      : world_(world), scenario_(scenario), caller_(caller), answerer_(answerer) {
    caller.call_done = [this](const ClientCallRef& call) { on_done(call); };
    answerer.request = [this](const ServerCallRef& call) { on_request(call); };
    plans_.resize(scenario.call_count);
    for (size_t i = 0; i < plans_.size(); ++i) plan_call(plans_[i], i);
    for (size_t i = 0; i + 1 < plans_.size(); ++i) chain(i);
  }
  ~Workload() {
    caller_.call_done = nullptr;
    answerer_.request = nullptr;
  }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  // Has handlers of this direction's calls make some of the other's.
  void nest(Workload& other) {
    for (size_t i = 0; i + 1 < plans_.size(); ++i) {
      CallPlan& inner = other.plans_[i + 1];  // so that none waits for itself
      if (inner.follows || !chance(scenario_.nested_probability)) continue;
      plans_[i].nested = &inner;
      inner.follows = true;
      nested_in_ = &other;
    }
  }
  void schedule_all() {
    for (CallPlan& plan : plans_)
      if (!plan.follows) schedule(plan);
  }
  // Nested ones that no handler came to make needn't.
  bool all_ended() const {
    if (caller_.dead) return true;  // nobody there to be told
    return std::ranges::all_of(
        plans_, [](const CallPlan& plan) { return plan.ended > 0 || (plan.follows && !plan.started && !plan.call); });
  }
  std::string open_calls() const {
    std::ostringstream text;
    for (const CallPlan& plan : plans_)
      if (plan.ended == 0) text << plan.key << " ";
    return text.str();
  }
  // Once nothing is under way. Lets go of the calls.
  void check_all() {
    EXPECT_LE(answerer_.calls_counted, plans_.size()) << "a call counts once, however often its body is fetched";
    for (CallPlan& plan : plans_) {
      if (plan.started && !caller_.dead) {
        EXPECT_EQ(plan.ended, 1) << "call " << plan.key;
      }
      check_executions(plan);
      plan.call.reset();
      plan.then = nullptr;
    }
  }

 private:
  using enum StatusCode;
  int64_t between(int64_t min, int64_t max) { return world_.rng.between(min, max); }
  bool chance(double probability) { return world_.rng.chance(probability); }

  size_t random_length() {
    const auto slot = static_cast<int64_t>(scenario_.client.geometry.slot_bytes);
    switch (between(0, 5)) {
      case 0:
        return 8 + between(0, 3 * slot);  // some too long for a slot
      case 1:
        return slot - between(0, 100);
      default:
        return 8 + between(0, 120);
    }
  }
  std::vector<size_t> random_buffers() {
    std::vector<size_t> lengths(chance(0.5) ? 0 : between(1, 4));
    for (size_t& length : lengths)
      length = chance(0.05) ? 0 : between(1, static_cast<int64_t>(scenario_.buffer_bytes_max));
    return lengths;
  }
  void plan_call(CallPlan& plan, size_t index) {
    plan.key = index + 1 + (world_.rng.next() << 20);
    plan.payload_bytes = random_length();
    if (chance(0.5)) plan.metadata_bytes = static_cast<size_t>(between(0, chance(0.1) ? 8192 : 60));
    plan.reply_bytes = random_length();
    plan.argument_bytes = random_buffers();
    plan.result_bytes = random_buffers();
    plan.fails = chance(scenario_.error_probability);
    if (!plan.fails && !plan.result_bytes.empty() && chance(0.5)) plan.out_bytes = plan.result_bytes.back();
    plan.handler_ns = chance(0.3) ? 0 : between(0, kMillisecond);
    if (chance(scenario_.deadline_probability)) plan.timeout = between(0, kMillisecond);
    by_key_[plan.key] = &plan;
  }

  // Callers begin and give up calls from inside the end of another.
  void chain(size_t index) {
    CallPlan& plan = plans_[index];
    if (chance(0.2)) {
      plan.next = &plans_[index + 1];
      plan.next->follows = true;
    }
    if (scenario_.cancel_probability > 0 && chance(0.1))
      plan.rival = &plans_[static_cast<size_t>(between(0, static_cast<int64_t>(plans_.size()) - 1))];
  }
  void schedule(CallPlan& plan) {
    const TimeNs at = between(0, scenario_.calls_over_ns);
    world_.network.schedule(at, [this, &plan] { start(plan); });
    if (!chance(scenario_.cancel_probability)) return;
    const TimeNs patience = chance(0.3) ? 0 : between(0, chance(0.5) ? 2 * kMillisecond : 60 * kMicrosecond);
    world_.network.schedule(at + patience, [this, &plan] { cancel(plan); });
  }
  endpoint::RegistrationCache* some_cache(SessionEnd& end) { return chance(0.5) ? &end.registrations : nullptr; }
  endpoint::Buffer some_buffer(SessionEnd& end, size_t length_bytes, uint64_t key, uint64_t part) {
    if (length_bytes < 2 || !chance(0.3)) return pattern_buffer(length_bytes, key, part, some_cache(end));
    const auto piece_count = static_cast<size_t>(between(2, 20));
    return pattern_pieces(length_bytes, std::min(piece_count, length_bytes), key, part, some_cache(end));
  }

  void start(CallPlan& plan) {
    if (!caller_.session || caller_.dead) {
      plan.ended = 1;
      if (plan.then) std::exchange(plan.then, nullptr)();
      if (plan.next != nullptr) start(*plan.next);
      return;
    }
    const std::string method = pattern(1 + plan.key % 40, plan.key, kMethodPart);
    std::string payload = pattern(plan.payload_bytes, plan.key, kPayloadPart);
    std::memcpy(payload.data(), &plan.key, sizeof(plan.key));
    CallRequest request{method, as_bytes(payload), {}, std::nullopt, kNever};
    for (size_t i = 0; i < plan.argument_bytes.size(); ++i)
      request.buffers.push_back(some_buffer(caller_, plan.argument_bytes[i], plan.key, kArgumentPart + i));
    if (plan.out_bytes != 0) {
      request.out = pattern_buffer(plan.out_bytes, 0, 0, some_cache(caller_));
      plan.out_memory = static_cast<TestHold*>(request.out->hold.get());
    }
    const std::string metadata = pattern(plan.metadata_bytes, plan.key, kMetadataPart);
    request.metadata = as_bytes(metadata);
    request.deadline = deadline_after(world_.network.now(), plan.timeout);
    plan.call = std::make_shared<ClientCall>();
    by_call_[plan.call.get()] = &plan;
    const Status status = caller_.session->client().start(plan.call, std::move(request), world_.network.now());
    plan.started = status.ok();
    if (status.ok()) return;
    EXPECT_EQ(plan.ended, 0) << "a call that start() gave an error for is never told of as ended";
    expect_allowed(plan, status);
    plan.ended = 1;
    if (plan.then) std::exchange(plan.then, nullptr)();
    if (plan.next != nullptr) start(*plan.next);
  }
  void cancel(CallPlan& plan) {
    if (!caller_.session || !plan.started || plan.ended > 0) return;
    plan.cancelled = true;
    caller_.session->client().cancel(plan.call, cancelled("by the test"));
    EXPECT_TRUE(plan.call->done()) << "a cancel ends the call for its caller at once";
  }

  void on_request(const ServerCallRef& call) {
    uint64_t key = 0;
    ASSERT_GE(call->payload().size(), sizeof(key));
    std::memcpy(&key, call->payload().data(), sizeof(key));
    ASSERT_TRUE(by_key_.contains(key)) << "a request with garbage";
    CallPlan& plan = *by_key_.at(key);
    ++plan.served;
    EXPECT_EQ(plan.served, 1);
    std::string expected = pattern(plan.payload_bytes, key, kPayloadPart);
    std::memcpy(expected.data(), &key, sizeof(key));
    EXPECT_EQ(as_text(call->payload()), expected) << "payload of call " << key;
    EXPECT_EQ(call->method(), pattern(1 + key % 40, key, kMethodPart));
    EXPECT_EQ(as_text(call->metadata()), pattern(plan.metadata_bytes, key, kMetadataPart));
    ASSERT_EQ(call->blocks().size(), plan.argument_bytes.size());
    for (size_t i = 0; i < call->blocks().size(); ++i) {
      const endpoint::ReceivedBlock& block = call->blocks()[i];
      EXPECT_EQ(block.size(), plan.argument_bytes[i]);
      EXPECT_TRUE(has_pattern({block.data(), block.size()}, key, kArgumentPart + i))
          << "argument " << i << " is garbage";
    }
    if (plan.nested != nullptr) {
      plan.nested->then = [this, call, &plan] { reply(call, plan); };
      return nested_in_->start(*plan.nested);
    }
    if (plan.handler_ns == 0) return reply(call, plan);
    world_.network.schedule(plan.handler_ns, [this, call, &plan] { reply(call, plan); });
  }
  void reply(const ServerCallRef& call, CallPlan& plan) {
    if (answerer_.dead || !answerer_.session) return;
    Reply reply;
    const std::string payload = pattern(plan.reply_bytes, plan.key, kPayloadPart);
    const std::string metadata = pattern(plan.metadata_bytes, plan.key, kMetadataPart);
    reply.metadata = as_bytes(metadata);
    const std::string details = pattern(plan.reply_bytes, plan.key, kDetailsPart);
    if (plan.fails) {
      reply.status = {kAborted, "planned " + std::to_string(plan.key)};
      reply.message_details = details;
    } else {
      reply.payload = as_bytes(payload);
      for (size_t i = 0; i < plan.result_bytes.size(); ++i)
        reply.buffers.push_back(some_buffer(answerer_, plan.result_bytes[i], plan.key, kResultPart + i));
      if (plan.out_bytes != 0) reply.out_index = static_cast<uint16_t>(plan.result_bytes.size() - 1);
    }
    answerer_.session->server().reply(call, std::move(reply), world_.network.now());
  }

  void on_done(const ClientCallRef& call) {
    CallPlan& plan = *by_call_.at(call.get());
    ++plan.ended;
    ++outcomes()[call->status().code()];
    check_outcome(plan, call);
    if (plan.then) std::exchange(plan.then, nullptr)();
    if (plan.rival != nullptr) cancel(*plan.rival);
    if (plan.next != nullptr) start(*plan.next);
  }
  void check_outcome(const CallPlan& plan, const ClientCallRef& call) {
    if (!call->status().ok()) return expect_allowed(plan, call->status());
    EXPECT_EQ(call->metadata(), pattern(plan.metadata_bytes, plan.key, kMetadataPart));
    EXPECT_FALSE(plan.fails);
    EXPECT_TRUE(has_pattern(call->payload(), plan.key, kPayloadPart)) << "result of call " << plan.key;
    EXPECT_EQ(call->payload().size(), plan.reply_bytes);
    ASSERT_EQ(call->blocks().size(), plan.result_bytes.size());
    for (size_t i = 0; i < call->blocks().size(); ++i) {
      const endpoint::ReceivedBlock& block = call->blocks()[i];
      const bool in_out = plan.out_bytes != 0 && i + 1 == call->blocks().size();
      const Bytes bytes = in_out ? Bytes(plan.out_memory->bytes) : Bytes(block.data(), block.size());
      EXPECT_EQ(bytes.size(), plan.result_bytes[i]);
      EXPECT_TRUE(has_pattern(bytes, plan.key, kResultPart + i)) << "result buffer " << i << " is garbage";
    }
  }
  void expect_allowed(const CallPlan& plan, const Status& status) {
    const bool allowed =
        (status.code() == kCancelled && plan.cancelled) ||
        (status.code() == kDeadlineExceeded && plan.timeout != kNever) ||
        (status.code() == kAborted && plan.fails && status.message() == "planned " + std::to_string(plan.key)) ||
        (status.code() == kResourceExhausted && scenario_.may_refuse) ||
        (status.code() == kUnavailable && scenario_.may_break) || (status.is_protocol_error() && scenario_.may_tamper);
    EXPECT_TRUE(allowed) << "call " << plan.key << " ended with " << status.to_string();
    if (status.code() == kAborted) {
      EXPECT_EQ(plan.call->details(), pattern(plan.reply_bytes, plan.key, kDetailsPart));
      EXPECT_EQ(plan.call->metadata(), pattern(plan.metadata_bytes, plan.key, kMetadataPart));
    }
  }

  bool drained() const { return scenario_.drains && &answerer_ == &world_.server; }
  // What is said of a call that failed is true: whoever trusts it may run it again.
  void check_executions(const CallPlan& plan) {
    if (!plan.call || plan.call->status().ok()) return;
    EXPECT_FALSE(plan.call->not_executed() && plan.served > 0) << "call " << plan.key << " was executed";
    if (drained() && plan.call->status().code() == kUnavailable) {
      EXPECT_TRUE(plan.call->not_executed()) << "call " << plan.key << " is lost to the drain";
    }
  }

  World& world_;
  const Scenario& scenario_;
  SessionEnd& caller_;
  SessionEnd& answerer_;
  Workload* nested_in_ = nullptr;
  std::vector<CallPlan> plans_;
  std::map<uint64_t, CallPlan*> by_key_;
  std::map<const ClientCall*, CallPlan*> by_call_;
};

inline void connect(World& world, const Scenario& scenario) {
  world.server_options = scenario.server;
  world.lazy_probability = scenario.lazy_probability;
  world.client.serves = scenario.both_ways;
  if (scenario.shared_receive_slots > 0) world.share_receives(scenario.shared_receive_slots);
  world.dial(scenario.client);
  const auto settled = [&world] {
    return (world.client.ready || world.client.closed) && (world.server.ready || world.server.closed);
  };
  // Before HELLO there is no keep-alive: a driver's handshake deadline ends what hangs.
  if (world.run_until(settled, kSecond)) return;
  EXPECT_TRUE(scenario.may_break) << "no connection";
  world.client.session->close(unavailable("no handshake in time"));
  if (world.server.session) world.server.session->close(unavailable("no handshake in time"));
}

// With both ends alive everything must come to rest; otherwise at least the survivor's memory must.
inline void come_to_rest(World& world, const Scenario& scenario) {
  if (!scenario.may_break) {
    EXPECT_FALSE(world.client.closed) << world.client.closed_with.to_string();
    EXPECT_FALSE(world.server.closed) << world.server.closed_with.to_string();
  }
  const bool server_lives = world.server.session && !world.server.dead;
  if (scenario.drains && server_lives) {
    const auto drained = [&world] { return world.server.session->drained(); };
    EXPECT_TRUE(world.run_until(drained, world.network.now() + kSecond) || world.server.closed)
        << "nobody said that no call follows";
  }
  const auto calls = [](const SessionEnd& end) {
    return !end.session || end.dead ? 0
                                    : end.session->client().calls_in_flight() + end.session->server().calls_under_way();
  };
  const auto nothing_to_revoke = [](const SessionEnd& end) {
    return !end.session || end.dead || end.session->endpoint().revocations_under_way() == 0;
  };
  const auto at_rest = [&] {
    return calls(world.client) == 0 && calls(world.server) == 0 &&
           (!world.server.session || world.server.dead || world.server.session->quiet()) &&
           nothing_to_revoke(world.client) && nothing_to_revoke(world.server);
  };
  EXPECT_TRUE(world.run_until(at_rest, world.network.now() + 10 * kSecond))
      << "left over: client " << calls(world.client) << " calls, server " << calls(world.server) << " calls";
  if (!scenario.may_break || scenario.drains) world.expect_credits_home();
}

inline void run_workloads(World& world, const Scenario& scenario) {
  Workload there(world, scenario, world.client, world.server);
  std::optional<Workload> back;
  if (scenario.both_ways) back.emplace(world, scenario, world.server, world.client);
  if (back) there.nest(*back);
  if (back) back->nest(there);
  connect(world, scenario);
  there.schedule_all();
  if (back) back->schedule_all();
  if (scenario.disturb) scenario.disturb(world);
  world.schedule_trims(scenario.calls_over_ns);
  // Virtual time, ample for the slowest network with the most pieces to fetch.
  const TimeNs limit = world.network.now() + 60 * kSecond;
  const auto all_ended = [&] { return there.all_ended() && (!back || back->all_ended()); };
  EXPECT_TRUE(world.run_until(all_ended, limit))
      << "calls hang: " << there.open_calls() << (back ? "; back: " + back->open_calls() : "");
  come_to_rest(world, scenario);
  EXPECT_TRUE(all_ended()) << "what handlers began late";
  there.check_all();
  if (back) back->check_all();
  if (!scenario.may_break) return;
  world.client.session.reset();  // what is left ends into the workloads
  world.server.session.reset();
}

// Runs one seed; what went wrong is printed with its seed.
inline void run_seed(uint64_t seed, bool trace, Scenario (*make)(Rng&)) {
  SCOPED_TRACE("RRPC_SIM_SEED=" + std::to_string(seed));
  Rng rng(seed * 7919);
  const Scenario scenario = make(rng);
  const Holdings before = Holdings::now();
  const int holds_before = TestHold::live();
  {
    World world(seed, scenario.plan);
    world.network.record_trace(trace);
    world.protect(protection_of_seed(seed));
    run_workloads(world, scenario);
    if (!scenario.may_break) {
      EXPECT_EQ(Holdings::now(), before) << "with the connection still open";
    }
    world.client.session.reset();
    world.server.session.reset();
    if (world.shared_ring) {
      EXPECT_EQ(world.receives_posted(), world.shared_ring->slots()) << "a shared receive was lost";
      EXPECT_EQ(world.shared_ring->slots_reserved(), 0u);
    }
    for (const std::string& line : world.network.violations()) ADD_FAILURE() << line;
    if (trace)
      for (const std::string& line : world.network.trace()) std::cout << line << "\n";
    client_pool().set_limit(size_t{1} << 30);
    server_pool().set_limit(size_t{1} << 30);
  }
  EXPECT_EQ(Holdings::now(), before);
  EXPECT_EQ(TestHold::live(), holds_before) << "memory of arguments or results was not let go";
}

inline void run_seeds(uint64_t usual, Scenario (*make)(Rng&), std::initializer_list<StatusCode> expected) {
  const SeedRange range = seeds(usual);
  outcomes().clear();
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    run_seed(seed, range.replay, make);
    if (::testing::Test::HasFailure()) return;  // the first says enough
  }
  for (const StatusCode code : expected)
    EXPECT_TRUE(range.count < 30 || outcomes()[code] > 0) << "no call ended with " << status_code_name(code);
}

}  // namespace rrpc::rpc
