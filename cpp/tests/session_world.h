// Two sessions on a simulated network, pumped as a driver would, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver/plugin.h"
#include "endpoint/counters.h"
#include "provider/sim/rng.h"
#include "provider/sim/shared_receive_queue.h"
#include "provider/sim/sim_network.h"
#include "rpc/session.h"

namespace rrpc::rpc {

using provider::sim::FaultPlan;
using provider::sim::Rng;
using provider::sim::SimNetwork;

// How many seeds a test runs: RRPC_SIM_SEEDS scales `usual` (which stands for 5000), RRPC_SIM_SEED=n replays one.
struct SeedRange {
  uint64_t first = 1;
  uint64_t count = 0;
  bool replay = false;
};
inline SeedRange seeds(uint64_t usual) {
  if (const char* seed = std::getenv("RRPC_SIM_SEED")) return {std::strtoull(seed, nullptr, 10), 1, true};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kTotal = 500;
#else
  constexpr uint64_t kTotal = 5000;
#endif
  const char* total = std::getenv("RRPC_SIM_SEEDS");
  return {1, std::max<uint64_t>(1, usual * (total != nullptr ? std::strtoull(total, nullptr, 10) : kTotal) / 5000)};
}

// Every counter that must come back to where it was.
struct Holdings {
  int64_t exposures_live, bytes_exposed, pool_bytes_used, calls_open;
  static Holdings now() {
    endpoint::Counters c;
    endpoint::add_totals(c);
    return {c.exposures_live, c.bytes_exposed, c.pool_bytes_used, c.calls_started - c.calls_ended};
  }
  bool operator==(const Holdings&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Holdings& held) {
  return out << "exposures " << held.exposures_live << ", exposed bytes " << held.bytes_exposed << ", pool bytes "
             << held.pool_bytes_used << ", calls open " << held.calls_open;
}

inline std::string words(endpoint::CreditsNow credits) {
  return std::to_string(credits.out) + " out and " + std::to_string(credits.owed) + " owed";
}

// Null where this build has none, for want of OpenSSL.
inline std::shared_ptr<provider::CipherFactory> ciphers() {
  static const auto found = driver::open_ciphers();
  return found.ok() ? *found : nullptr;
}

// What two ends agree on, each on its own.
struct ProtectionChoice {
  provider::Protection mode = provider::Protection::kNone;
  provider::ExportedKey secret{};
  endpoint::KeyLimits limits;
};

// One end. Pools are shared by all seeds, so that recycled memory is full of other calls' bytes.
struct SessionEnd : SessionEvents {
  SessionEnd(SimNetwork& network, const std::string& host, endpoint::Pool& its_pool, size_t pinned_bytes_max = 1 << 20)
      : pool(its_pool), device(network.create_device(host)), registrations(*device, its_pool, pinned_bytes_max) {}

  void make(Role role, std::unique_ptr<provider::CompletionQueue> cq, std::unique_ptr<provider::QueuePair> qp,
            const SessionOptions& options, TimeNs now, endpoint::ReceiveShare share = {}) {
    const uint32_t epoch = role == Role::kClient ? 17 : 23;
    HelloFields hello{{"wire", "1"}};
    if (serves) hello["serves"] = "1";
    session = std::make_unique<Session>(role, endpoint::DeviceContext{*device, pool, registrations}, std::move(cq),
                                        std::move(qp), options, epoch, hello, *this, std::move(share));
    const Status status = session->start(now);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void pump(TimeNs now) {
    if (!session || dead) return;
    while (session->progress(now) > 0) {
    }
    if (now < session->next_tick()) return;
    session->tick(now);
    EXPECT_GT(session->next_tick(), now) << "a tick that is due for ever keeps a processor busy";
  }
  TimeNs next_tick() const { return session && !dead ? session->next_tick() : kNever; }
  bool failed() const { return session && session->failed(); }
  bool runs() const { return session && !dead; }

  // A server may decide before its own HELLO or after it.
  std::optional<Status> on_hello() override {
    if (protects_in_hello) protect();
    return Status();
  }
  void on_ready() override {
    if (!protects_in_hello) protect();
    ready = true;
  }
  void protect() {
    if (protection.mode == provider::Protection::kNone) return;
    session->protect(protection.mode, ciphers(), protection.secret, protection.limits);
  }
  void on_closed(const Status& why) override {
    EXPECT_FALSE(closed) << "a session ends once";
    closed = true;
    closed_with = why;
  }
  void on_call_done(const ClientCallRef& call) override {
    if (call_done) call_done(call);
  }
  Refusal why_not(std::string_view, Asked asked, TimeNs) override {
    if (!denied.ok()) return {denied};
    if (asked == Asked::kOnce) ++calls_counted;
    return {};
  }
  void on_request(const ServerCallRef& call) override {
    if (request) request(call);
  }
  void on_replies_taken() override { ++replies_taken; }
  bool take_back(const ServerCallRef& call) override { return waits && waits(call); }
  void on_stream_changed(const StreamRef& stream) override {
    if (stream_changed) stream_changed(stream);
  }

  endpoint::Pool& pool;
  std::unique_ptr<provider::Device> device;
  endpoint::RegistrationCache registrations;
  size_t replies_taken = 0;
  size_t calls_counted = 0;  // of those that a limited rate would allow
  Status denied;             // why no call is let in
  std::function<void(const ClientCallRef&)> call_done;
  std::function<void(const ServerCallRef&)> request;
  std::function<bool(const ServerCallRef&)> waits;
  std::function<void(const StreamRef&)> stream_changed;
  bool serves = false;  // a client that takes calls
  bool protects_in_hello = false;
  ProtectionChoice protection;
  bool ready = false;
  bool closed = false;
  bool dead = false;  // its host was killed: nobody polls there
  Status closed_with;
  std::unique_ptr<Session> session;
};

// Some seeds of every family run protected, and their keys roll often.
inline ProtectionChoice protection_of_seed(uint64_t seed) {
  ProtectionChoice choice;
  if (seed % 3 == 0 || ciphers() == nullptr) return choice;
  choice.mode = seed % 3 == 1 ? provider::Protection::kSign : provider::Protection::kEncrypt;
  choice.secret.fill(static_cast<std::byte>(seed));
  choice.limits = {1 + seed % 7, 1 + seed % 5, 1 + seed % 30000};
  return choice;
}

inline endpoint::Pool& client_pool() {
  static endpoint::Pool pool(size_t{1} << 30);
  return pool;
}
inline endpoint::Pool& server_pool() {
  static endpoint::Pool pool(size_t{1} << 30);
  return pool;
}

struct World {
  explicit World(uint64_t seed, const FaultPlan& plan = {}) : rng(seed ^ 0x5eed), network(seed, plan) {
    listener = server.device->listen("server:1", {}).value();
  }

  void dial(const SessionOptions& options) {
    const auto config = endpoint::queue_pair_config(options.geometry);
    auto cq = client.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto qp = client.device->open(*cq, "server:1", config, kNever).value();
    if (wrap) qp = wrap(client, std::move(qp));
    client.make(Role::kClient, std::move(cq), std::move(qp), options, network.now());
  }
  void accept_waiting() {
    if (!server.session) accept_for(server);
  }
  // As a server does it, with a share of the listener's ring where there is one.
  bool accept_for(SessionEnd& end) {
    SessionOptions options = server_options;
    endpoint::ReceiveShare share;
    if (shared_ring) {
      share = shared_ring->reserve(options.geometry.slots).value();
      options.geometry.slots = share.slots();
    }
    auto config = endpoint::queue_pair_config(options.geometry);
    if (shared_ring) config.shared_receives = &shared_ring->queue();
    auto cq = end.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto qp = listener->accept(*cq, config).value();
    if (!qp) return false;
    if (wrap) qp = wrap(end, std::move(qp));
    end.make(Role::kServer, std::move(cq), std::move(qp), options, network.now(), std::move(share));
    return true;
  }
  // Rails of the client's connection: from now on it may dial them.
  void open_rails() { rail_listener = server.device->listen("server:2", {}).value(); }
  // Gives what became of it at the client; the server's may be refused.
  Status dial_rail(size_t index) {
    if (!client.runs() || client.failed()) return unavailable("no connection");
    endpoint::RailQueues queues;
    queues.completions = client.device->create_completion_queue(64);
    queues.queue_pair = client.device->open(*queues.completions, "server:2", kRailConfig, kNever).value();
    return add_rail(client, client_rails, index, queues);
  }
  void accept_rails() {
    if (rail_listener == nullptr || !server.runs()) return;
    for (;;) {
      endpoint::RailQueues queues;
      queues.completions = server.device->create_completion_queue(64);
      queues.queue_pair = rail_listener->accept(*queues.completions, kRailConfig).value();
      if (queues.queue_pair == nullptr) return;
      const auto offer = endpoint::read_rail_offer(queues.queue_pair->peer_private_data());
      ASSERT_TRUE(offer.has_value());
      (void)add_rail(server, server_rails, offer->rail, queues);
    }
  }
  static inline const provider::QueuePairConfig kRailConfig{32, 1, 16};
  using RailPairs = std::array<provider::QueuePair*, endpoint::kRailsMax>;  // null: there is none
  static Status add_rail(SessionEnd& end, RailPairs& rails, size_t index, endpoint::RailQueues& queues) {
    provider::QueuePair* const made = queues.queue_pair.get();
    Status status = end.session->endpoint().add_rail(index, queues, {}, kNever);
    if (status.ok()) rails.at(index) = made;
    return status;
  }
  static void lose_rail(SessionEnd& end, const RailPairs& rails, size_t index) {
    if (end.runs() && rails.at(index) != nullptr) rails.at(index)->disconnect("by the test");
  }

  void share_receives(uint32_t slots) {
    shared_ring =
        endpoint::SharedRing::create(*server.device, *listener, slots, server_options.geometry.slot_bytes).value();
  }
  void protect(const ProtectionChoice& choice) {
    client.protection = server.protection = choice;
    server.protects_in_hello = rng.chance(0.5);
  }
  // Of the shared ring, how many receives are posted.
  size_t receives_posted() {
    return static_cast<provider::sim::SimSharedReceiveQueue&>(shared_ring->queue()).posted_count();
  }
  void connect(const SessionOptions& client_side, const SessionOptions& server_side) {
    server_options = server_side;
    dial(client_side);
    ASSERT_TRUE(run_until([this] { return client.ready && server.ready; }, network.now() + kSecond));
  }

  // One event, at its time, and whoever polls then. False when nothing will ever happen again.
  bool advance() {
    const TimeNs tick = std::min(client.next_tick(), server.next_tick());
    const TimeNs event = network.next_event_time();
    if (event == kNever && tick == kNever) return false;
    if (event <= tick)
      network.step();
    else
      network.run_until(std::max(tick, network.now()));
    accept_waiting();
    accept_rails();
    const bool idle = network.next_event_time() == kNever;
    if (idle || !rng.chance(lazy_probability)) client.pump(network.now());
    if (idle || !rng.chance(lazy_probability)) server.pump(network.now());
    return true;
  }
  template <typename Predicate>
  bool run_until(Predicate done, TimeNs limit) {
    client.pump(network.now());
    server.pump(network.now());
    while (!done()) {
      if (network.now() > limit || !advance()) return done();
    }
    return true;
  }
  void run_for(TimeNs duration) {
    const TimeNs end = network.now() + duration;
    network.schedule(duration, [] {});
    run_until([&] { return network.now() >= end; }, end);
  }
  // In some runs, at any moment up to then, whatever is under way: only what nobody uses may go.
  void schedule_trims(TimeNs until) {
    for (int64_t left = rng.chance(0.9) ? 0 : rng.between(1, 4); left > 0; --left) {
      endpoint::Pool& pool = rng.chance(0.5) ? client_pool() : server_pool();
      network.schedule(rng.between(0, until), [&pool] { pool.trim(); });
    }
  }

  // Of a connection that stays open, at rest: no credit is lost, and none is owed for long.
  void expect_credits_home() {
    if (!client.runs() || !server.runs()) return;
    const endpoint::Endpoint& here = client.session->endpoint();
    const endpoint::Endpoint& there = server.session->endpoint();
    const auto meet = [](endpoint::CreditsNow one, endpoint::CreditsNow other) {
      return one.out == other.owed && other.out == one.owed;
    };
    const auto home = [&] {
      return meet(here.data_credits(), there.data_credits()) && meet(here.control_credits(), there.control_credits()) &&
             !here.owes_credits() && !there.owes_credits();
    };
    // Long enough for the latest message, and no keep-alive comes to take them along.
    EXPECT_TRUE(run_until(home, network.now() + 300 * kMillisecond))
        << "credits are not home: data " << words(here.data_credits()) << ", " << words(there.data_credits())
        << "; control " << words(here.control_credits()) << ", " << words(there.control_credits());
  }

  Rng rng;
  SimNetwork network;
  double lazy_probability = 0;
  SessionOptions server_options;
  std::function<std::unique_ptr<provider::QueuePair>(SessionEnd&, std::unique_ptr<provider::QueuePair>)> wrap;
  std::shared_ptr<endpoint::SharedRing> shared_ring;
  SessionEnd client{network, "client", client_pool()};
  SessionEnd server{network, "server", server_pool()};
  std::unique_ptr<provider::Listener> listener;
  std::unique_ptr<provider::Listener> rail_listener;
  RailPairs client_rails{};
  RailPairs server_rails{};
};

// Memory of a caller or a handler, which says when it is let go.
class TestHold : public endpoint::Hold {
 public:
  TestHold(size_t length_bytes, endpoint::RegistrationCache* cache, uint64_t owner_id)
      : bytes(length_bytes), cache_(cache), owner_id_(owner_id) {
    ++live();
  }
  ~TestHold() override {
    if (cache_ != nullptr) cache_->evict_owner(owner_id_);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xEE});  // whoever still reads it gets this
    --live();
  }
  static int& live() {
    static int count = 0;
    return count;
  }
  std::vector<std::byte> bytes;

 private:
  endpoint::RegistrationCache* cache_;
  uint64_t owner_id_;
};

// The bytes of part `part` of call `key`: no two calls share them.
inline void fill_pattern(MutableBytes target, uint64_t key, uint64_t part) {
  uint64_t word = (key * 0x9e3779b97f4a7c15) ^ (part * 0xbf58476d1ce4e5b9);
  for (size_t i = 0; i < target.size(); i += sizeof(word)) {
    word = word * 6364136223846793005 + 1442695040888963407;
    const uint64_t mixed = word ^ (word >> 29);
    std::memcpy(target.data() + i, &mixed, std::min(sizeof(mixed), target.size() - i));
  }
}
inline std::string pattern(size_t length_bytes, uint64_t key, uint64_t part) {
  std::string text(length_bytes, '\0');
  fill_pattern(std::as_writable_bytes(std::span(text)), key, part);
  return text;
}
inline bool has_pattern(Bytes bytes, uint64_t key, uint64_t part) {
  return as_text(bytes) == pattern(bytes.size(), key, part);
}
inline endpoint::Buffer pattern_buffer(size_t length_bytes, uint64_t key, uint64_t part,
                                       endpoint::RegistrationCache* cache = nullptr) {
  static uint64_t last_owner_id = 0;
  const uint64_t owner_id = cache == nullptr ? endpoint::kNoOwner : ++last_owner_id;
  auto hold = std::make_unique<TestHold>(length_bytes, cache, owner_id);
  fill_pattern(hold->bytes, key, part);
  std::byte* data = hold->bytes.data();
  return {data, length_bytes, owner_id, std::move(hold), {}};
}
// The same bytes in pieces of about the same length, with gaps between them that no peer may see.
inline endpoint::Buffer pattern_pieces(size_t length_bytes, size_t piece_count, uint64_t key, uint64_t part,
                                       endpoint::RegistrationCache* cache = nullptr) {
  constexpr size_t kGapBytes = 40;
  const size_t piece_bytes = (length_bytes + piece_count - 1) / piece_count;
  endpoint::Buffer buffer = pattern_buffer(length_bytes + piece_count * kGapBytes, key, part, cache);
  const std::string bytes = pattern(length_bytes, key, part);
  std::byte* to = std::exchange(buffer.data, nullptr);
  std::fill_n(to, buffer.length_bytes, std::byte{0xDD});
  for (size_t at = 0; at < length_bytes; at += piece_bytes) {
    const size_t length = std::min(piece_bytes, length_bytes - at);
    std::memcpy(to, bytes.data() + at, length);
    buffer.pieces.emplace_back(to, length);
    to += length + kGapBytes;
  }
  buffer.length_bytes = length_bytes;
  return buffer;
}

}  // namespace rrpc::rpc
