// Random calls with streams between two sessions, and what must hold of them whatever happens.
#pragma once

#include <map>
#include <sstream>

#include "session_world.h"

namespace rrpc::rpc {

struct ItemPlan {
  size_t payload_bytes = 0;
  std::vector<size_t> buffer_bytes;
};

struct StreamPlan {
  uint64_t key = 0;
  uint8_t kind = kServerStreams;
  bool back = false;  // the server calls; what is the client's here is the caller's
  std::vector<ItemPlan> from_client, from_server;
  size_t reply_bytes = 16;
  size_t result_bytes = 0;  // a buffer of the reply; 0: none
  bool metadata = false;    // initial
  bool fails = false;
  int reply_after = -1;  // the server replies after so many of the client's items; -1: after all
  TimeNs client_pace = 0, server_pace = 0;
  size_t batch = 4;
  TimeNs timeout = kNever;

  ClientCallRef call;
  bool started = false;
  bool cancelled = false;
  bool served = false;
  int ended = 0;
};

constexpr uint64_t kClientItems = 1000, kServerItems = 1'000'000, kPartsPerItem = 64, kInitialPart = 5, kReplyPart = 6,
                   kReplyBufferPart = 7;

// One end of a call with streams: sends its items and takes the other's, at its own pace. It never acts inside the
// session's events, as no driver does, and once it can do nothing it waits to be told.
class StreamActor {
 public:
  StreamActor(World& world, SessionEnd& end, StreamRef stream, StreamPlan& plan, bool calling)
      : world_(world), end_(end), stream_(std::move(stream)), plan_(plan), calling_(calling) {}

  void changed(const StreamRef& stream) {
    if (stream == stream_) wake(0);
  }
  void wake(TimeNs delay) {
    if (std::exchange(scheduled_, true)) return;
    world_.network.schedule(delay, [this] {
      scheduled_ = false;
      if (!finished_ && end_.session && !end_.dead) step();
    });
  }
  size_t received() const { return received_; }
  const StreamRef& stream() const { return stream_; }
  bool has_items() const { return end_.session && !end_.dead && stream_->readable(); }

  std::function<void()> on_finished;  // at the answering end: it's time to reply

 private:
  const std::vector<ItemPlan>& mine() const { return calling_ ? plan_.from_client : plan_.from_server; }
  const std::vector<ItemPlan>& theirs() const { return calling_ ? plan_.from_server : plan_.from_client; }
  Streams& streams() { return end_.session->streams(); }

  void step() {
    const bool sent = send_some();
    const bool took = take_some();
    const TimeNs pace = calling_ ? plan_.client_pace : plan_.server_pace;
    if (finished_) return;
    if (sent || took) return wake(pace == 0 ? 0 : world_.rng.between(0, pace));
  }

  bool send_some() {
    if (!stream_->sends() || stream_->ended()) return false;
    if (!calling_ && plan_.metadata && sent_ == 0 && !std::exchange(metadata_sent_, true)) {
      const std::string text = pattern(100, plan_.key, kInitialPart);
      EXPECT_TRUE(streams().send_initial_metadata(stream_, as_bytes(text)).ok());
    }
    bool any = false;
    for (size_t i = 0; i < plan_.batch && sent_ < mine().size() && !stream_->ended(); ++i) {
      const ItemPlan& planned = mine()[sent_];
      const uint64_t part = (calling_ ? kClientItems : kServerItems) + sent_ * kPartsPerItem;
      const std::string payload = pattern(planned.payload_bytes, plan_.key, part);
      OutgoingItem item{as_bytes(payload), {}};
      for (size_t k = 0; k < planned.buffer_bytes.size(); ++k) item.buffers.push_back(buffer(planned, part, k));
      const Result<bool> gone = streams().send(stream_, item, gathers());
      if (!end_.session) return false;
      if (!gone.ok()) {
        sent_ = mine().size();  // gives it up
        break;
      }
      if (!*gone) {
        if (gathers()) send_gathered_later();
        return any;
      }
      ++sent_;
      any = true;
    }
    if (any && gathers()) send_gathered_later();
    if (sent_ == mine().size() && !std::exchange(half_closed_, true) && end_.session) {
      if (calling_) streams().finish(stream_);
      any = true;
    }
    return any;
  }
  // In half of the calls small items wait for each other, until somebody polls.
  bool gathers() const { return plan_.key % 2 == 1; }
  void send_gathered_later() {
    world_.network.schedule(static_cast<TimeNs>(plan_.key % 5) * 3 * kMicrosecond, [this] {
      if (end_.session && !end_.dead) end_.session->send_held();
    });
  }
  endpoint::Buffer buffer(const ItemPlan& planned, uint64_t part, size_t k) {
    const size_t length = planned.buffer_bytes[k];
    endpoint::RegistrationCache* cache = k % 2 == 0 ? &end_.registrations : nullptr;
    if (length > 100 && k % 3 == 2) return pattern_pieces(length, 5, plan_.key, part + 1 + k, cache);
    return pattern_buffer(length, plan_.key, part + 1 + k, cache);
  }

  bool take_some() {
    std::vector<Item> items;
    if (stream_->receives()) streams().take(stream_, plan_.batch, items);
    for (Item& item : items) check(item);
    const bool enough = !calling_ && plan_.reply_after >= 0 && received_ >= static_cast<size_t>(plan_.reply_after);
    const bool all_taken = items.empty() && stream_->exhausted();
    const bool done_sending = !stream_->sends() || half_closed_;
    if (!calling_ && (stream_->ended() || enough || (all_taken && done_sending))) {
      finished_ = true;
      on_finished();
    }
    return !items.empty();
  }
  void check(Item& item) {
    ASSERT_LT(received_, theirs().size());
    const ItemPlan& planned = theirs()[received_];
    const uint64_t part = (calling_ ? kServerItems : kClientItems) + received_ * kPartsPerItem;
    EXPECT_EQ(item.payload().size(), planned.payload_bytes);
    EXPECT_TRUE(has_pattern(item.payload(), plan_.key, part)) << "the payload of item " << received_;
    ASSERT_EQ(item.blocks().size(), planned.buffer_bytes.size());
    for (size_t k = 0; k < item.blocks().size(); ++k) {
      const endpoint::ReceivedBlock& block = item.blocks()[k];
      EXPECT_EQ(block.size(), planned.buffer_bytes[k]);
      EXPECT_TRUE(has_pattern({block.data(), block.size()}, plan_.key, part + 1 + k))
          << "buffer " << k << " of item " << received_ << " is garbage";
    }
    if (calling_ && plan_.metadata && received_ == 0) {
      EXPECT_EQ(stream_->initial_metadata(), pattern(100, plan_.key, kInitialPart));
    }
    ++received_;
    if (received_ % 3 == 0) held_.push_back(std::move(item));  // users keep what they like
  }

  World& world_;
  SessionEnd& end_;
  const StreamRef stream_;
  StreamPlan& plan_;
  const bool calling_;
  bool scheduled_ = false;
  bool finished_ = false;
  bool half_closed_ = false;
  bool metadata_sent_ = false;
  size_t sent_ = 0;
  size_t received_ = 0;
  std::vector<Item> held_;
};

class StreamWorkload;

struct StreamScenario {
  FaultPlan plan;
  SessionOptions client, server;
  std::vector<StreamPlan> calls;
  std::vector<TimeNs> starts;   // of each
  std::vector<TimeNs> cancels;  // kNever: not
  double lazy_probability = 0;
  bool both_ways = false;  // the client serves too
  bool may_refuse = false;
  bool may_break = false;
  std::function<void(World&)> disturb;
  std::function<void(World&, StreamWorkload&, size_t)> at_step;  // with the number of events so far
};

// How calls ended, over all seeds: a family that never gets where it means to go proves nothing.
inline std::map<StatusCode, int>& stream_outcomes() {
  static std::map<StatusCode, int> counts;
  return counts;
}

class StreamWorkload {
 public:
  StreamWorkload(World& world, StreamScenario& scenario) : world_(world), scenario_(scenario) {
    world.lazy_probability = scenario.lazy_probability;
    world.client.serves = scenario.both_ways;
    const auto changed = [this](const StreamRef& stream) {
      if (const auto it = actors_.find(stream.get()); it != actors_.end()) it->second->changed(stream);
    };
    for (SessionEnd* end : {&world.client, &world.server}) {
      end->call_done = [this](const ClientCallRef& call) { on_done(call); };
      end->request = [this](const ServerCallRef& call) { on_request(call); };
      end->stream_changed = changed;
    }
    for (StreamPlan& plan : scenario.calls) by_key_[plan.key] = &plan;
  }
  ~StreamWorkload() {
    for (SessionEnd* end : {&world_.client, &world_.server}) {
      end->stream_changed = nullptr;
      end->call_done = nullptr;
      end->request = nullptr;
    }
  }

  // Gives the number of events it took.
  size_t run() {
    world_.connect(scenario_.client, scenario_.server);
    for (size_t i = 0; i < scenario_.calls.size(); ++i) {
      StreamPlan& plan = scenario_.calls[i];
      world_.network.schedule(scenario_.starts.empty() ? 0 : scenario_.starts[i], [this, &plan] { start(plan); });
      if (!scenario_.cancels.empty() && scenario_.cancels[i] != kNever)
        world_.network.schedule(scenario_.cancels[i], [this, &plan] { cancel(plan); });
    }
    if (scenario_.disturb) scenario_.disturb(world_);
    world_.schedule_trims(2 * kMillisecond);
    size_t steps = 0;
    const auto step = [&] {
      if (scenario_.at_step) scenario_.at_step(world_, *this, steps);
      ++steps;
      return all_ended();
    };
    EXPECT_TRUE(world_.run_until(step, world_.network.now() + 60 * kSecond)) << "streams hang: " << open_calls();
    finish();
    return steps;
  }
  void cancel(StreamPlan& plan) {
    if (!caller(plan).runs() || !plan.started || plan.ended > 0) return;
    plan.cancelled = true;
    caller(plan).session->client().cancel(plan.call, cancelled("by the test"));
    EXPECT_TRUE(plan.call->done());
  }
  void cancel_first() { cancel(scenario_.calls.front()); }
  // The server has enough of the first call.
  void reply_early() {
    if (server_calls_.empty()) return;
    replied_early_ = true;
    const ServerCallRef call = server_calls_.front();
    reply(call, scenario_.calls.front());
  }

 private:
  using enum StatusCode;

  SessionEnd& caller(const StreamPlan& plan) { return plan.back ? world_.server : world_.client; }
  SessionEnd& answerer(const StreamPlan& plan) { return plan.back ? world_.client : world_.server; }

  void start(StreamPlan& plan) {
    plan.ended = 1;
    if (!caller(plan).runs()) return;
    const std::string payload(reinterpret_cast<const char*>(&plan.key), sizeof(plan.key));
    CallRequest request{"m", as_bytes(payload), {}, std::nullopt, deadline_after(world_.network.now(), plan.timeout)};
    request.kind = plan.kind;
    plan.call = std::make_shared<ClientCall>();
    by_call_[plan.call.get()] = &plan;
    plan.ended = 0;
    const Status status = caller(plan).session->client().start(plan.call, std::move(request), world_.network.now());
    plan.started = status.ok();
    if (!status.ok()) {
      expect_allowed(plan, status);
      plan.ended = 1;
      return;
    }
    add_actor(caller(plan), plan.call->stream(), plan, true).wake(0);
  }
  StreamActor& add_actor(SessionEnd& end, const StreamRef& stream, StreamPlan& plan, bool calling) {
    auto& actor = actors_[stream.get()];
    actor = std::make_unique<StreamActor>(world_, end, stream, plan, calling);
    return *actor;
  }
  void on_request(const ServerCallRef& call) {
    uint64_t key = 0;
    ASSERT_EQ(call->payload().size(), sizeof(key));
    std::memcpy(&key, call->payload().data(), sizeof(key));
    StreamPlan& plan = *by_key_.at(key);
    EXPECT_FALSE(std::exchange(plan.served, true));
    EXPECT_EQ(call->kind(), plan.kind);
    server_calls_.push_back(call);
    StreamActor& actor = add_actor(answerer(plan), call->stream(), plan, false);
    actor.on_finished = [this, call, &plan] { reply(call, plan); };
    actor.wake(plan.server_pace == 0 ? 0 : world_.rng.between(0, plan.server_pace));
  }
  void reply(const ServerCallRef& call, StreamPlan& plan) {
    if (!answerer(plan).runs() || std::erase(server_calls_, call) == 0) return;
    Reply reply;
    const std::string payload = pattern(plan.reply_bytes, plan.key, kReplyPart);
    if (plan.fails)
      reply.status = {kAborted, "planned"};
    else
      reply.payload = as_bytes(payload);
    if (plan.result_bytes > 0) reply.buffers.push_back(pattern_buffer(plan.result_bytes, plan.key, kReplyBufferPart));
    answerer(plan).session->server().reply(call, std::move(reply), world_.network.now());
  }
  void on_done(const ClientCallRef& call) {
    StreamPlan& plan = *by_call_.at(call.get());
    ++plan.ended;
    ++stream_outcomes()[call->status().code()];
    if (!call->status().ok()) return expect_allowed(plan, call->status());
    EXPECT_FALSE(plan.fails);
    EXPECT_EQ(as_text(call->payload()), pattern(plan.reply_bytes, plan.key, kReplyPart));
    EXPECT_EQ(call->blocks().size(), plan.result_bytes > 0 ? 1u : 0u);
    for (endpoint::ReceivedBlock& block : call->blocks())
      EXPECT_TRUE(has_pattern({block.data(), block.size()}, plan.key, kReplyBufferPart));
  }
  void expect_allowed(const StreamPlan& plan, const Status& status) {
    const bool allowed = (status.code() == kCancelled && plan.cancelled) ||
                         (status.code() == kDeadlineExceeded && plan.timeout != kNever) ||
                         (status.code() == kAborted && plan.fails) ||
                         (status.code() == kResourceExhausted && scenario_.may_refuse) ||
                         (status.code() == kUnavailable && scenario_.may_break);
    EXPECT_TRUE(allowed) << "call " << plan.key << " ended with " << status.to_string();
  }

  bool all_ended() {
    return std::ranges::all_of(scenario_.calls, [this](const StreamPlan& plan) {
      return plan.ended > 0 || caller(plan).dead;  // nobody there to be told
    });
  }
  std::string open_calls() const {
    std::ostringstream text;
    for (const StreamPlan& plan : scenario_.calls)
      if (plan.ended == 0) text << plan.key << " of kind " << int{plan.kind} << ", ";
    return text.str();
  }

  // With both ends alive everything must come to rest; otherwise at least the survivor's memory must.
  void finish() {
    const auto calls = [](const SessionEnd& end) {
      return end.runs() ? end.session->client().calls_in_flight() + end.session->server().calls_under_way() : 0;
    };
    const auto fetches = [](const SessionEnd& end) {
      return end.runs() ? end.session->streams().fetches_under_way() : 0;
    };
    const auto revocations = [](const SessionEnd& end) {
      return end.runs() ? end.session->endpoint().revocations_under_way() : 0;
    };
    const auto all_taken = [this] {
      return std::ranges::none_of(actors_, [](const auto& entry) { return entry.second->has_items(); });
    };
    const auto at_rest = [&] {
      return calls(world_.client) == 0 && calls(world_.server) == 0 &&
             fetches(world_.client) + fetches(world_.server) == 0 &&
             revocations(world_.client) + revocations(world_.server) == 0 && all_taken() &&
             (!world_.server.runs() || world_.server.session->quiet()) &&
             (!world_.client.dead || world_.server.closed) && (!world_.server.dead || world_.client.closed);
    };
    EXPECT_TRUE(world_.run_until(at_rest, world_.network.now() + 100 * kSecond))
        << "left over: client " << calls(world_.client) << " calls, server " << calls(world_.server) << " calls";
    if (!scenario_.may_break) {
      world_.expect_credits_home();
      EXPECT_FALSE(world_.client.closed) << world_.client.closed_with.to_string();
      EXPECT_FALSE(world_.server.closed) << world_.server.closed_with.to_string();
    }
    world_.run_for(kMillisecond);  // let go of what was said last
    // A request that was late may have come just now, of a client that is gone.
    EXPECT_TRUE(world_.run_until(at_rest, world_.network.now() + 100 * kSecond));
    for (const SessionEnd* end : {&world_.client, &world_.server}) {
      if (!end->runs()) continue;
      EXPECT_EQ(end->session->streams().exposed_bytes(), 0u);
    }
    check_all_taken();
    for (StreamPlan& plan : scenario_.calls) plan.call.reset();
    actors_.clear();
    server_calls_.clear();
  }
  // What ended well lost nothing.
  void check_all_taken() {
    for (const StreamPlan& plan : scenario_.calls) {
      if (!plan.call || !plan.call->done() || !plan.call->status().ok()) continue;
      if (!caller(plan).runs()) continue;
      const auto& actor = actors_.at(plan.call->stream().get());
      if (plan.reply_after < 0 && plan.kind != kClientStreams && !replied_early_ && !scenario_.may_refuse) {
        EXPECT_EQ(actor->received(), plan.from_server.size()) << "call " << plan.key;
      }
    }
  }

  World& world_;
  StreamScenario& scenario_;
  bool replied_early_ = false;
  std::map<uint64_t, StreamPlan*> by_key_;
  std::map<const ClientCall*, StreamPlan*> by_call_;
  std::map<const Stream*, std::unique_ptr<StreamActor>> actors_;
  std::vector<ServerCallRef> server_calls_;
};

// Runs one scenario; gives the number of its events.
inline size_t run_streams(uint64_t seed, StreamScenario scenario, bool trace = false) {
  const Holdings before = Holdings::now();
  const int holds_before = TestHold::live();
  const int64_t leases_expired = endpoint::total(&endpoint::Counters::leases_expired);
  size_t steps = 0;
  {
    World world(seed, scenario.plan);
    world.network.record_trace(trace);
    world.protect(protection_of_seed(seed));
    StreamWorkload workload(world, scenario);
    steps = workload.run();
    if (!scenario.may_break) {
      EXPECT_EQ(Holdings::now(), before) << "with the connection still open";
      EXPECT_EQ(endpoint::total(&endpoint::Counters::leases_expired), leases_expired) << "the client said no DONE";
    }
    world.client.session.reset();
    world.server.session.reset();
    for (const std::string& line : world.network.violations()) ADD_FAILURE() << line;
    if (trace)
      for (const std::string& line : world.network.trace()) std::cout << line << "\n";
    client_pool().set_limit(size_t{1} << 30);
    server_pool().set_limit(size_t{1} << 30);
  }
  EXPECT_EQ(Holdings::now(), before);
  EXPECT_EQ(TestHold::live(), holds_before) << "memory of items was not let go";
  return steps;
}

}  // namespace rrpc::rpc
