// Streams between threads: many at a time, asleep and awake, parked, cancelled, cut off.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

using Outcome = Stream::Outcome;
constexpr TimeNs kLongest = 60 * kSecond;  // of every call: what hangs fails

// Waits as Python's side does. `more`: as it sends items that have followed each other at once.
Status send(Stream& stream, rpc::OutgoingItem item, bool more = false) {
  for (bool patient = !more;; patient = true) {
    Status failure;
    const Outcome outcome = stream.try_send(item, patient, failure, more);
    if (outcome == Outcome::kDone) return {};
    if (outcome == Outcome::kFailed) return failure;
    if (patient) (void)stream.wait_for_room(kNever, kUninterrupted);
  }
}
Status send(Stream& stream, const std::string& payload) { return send(stream, rpc::OutgoingItem{as_bytes(payload)}); }

Result<std::vector<rpc::Item>> receive(Stream& stream, size_t count = 64) {
  std::vector<rpc::Item> items;
  while (true) {
    Status failure;
    const Outcome outcome = stream.try_receive(count, items, true, failure);
    if (outcome == Outcome::kDone) return items;
    if (outcome == Outcome::kFailed) return failure;
    (void)stream.wait_for_items(kNever, kUninterrupted);
  }
}

std::string text_of(const rpc::Item& item) { return std::string(as_text(item.payload())); }

// Methods: count (its payload: how many items to send), sum (of the client's items), echo (of each), wait (for the
// stream's end), produce (parks whenever there is no room).
class StreamServer {
 public:
  StreamServer(const std::string& transport, int workers, const Options& options = {})
      : server_(secured(transport, options, "server")) {
    address_ = server_.listen(new_address(transport)).value();
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
  }
  ~StreamServer() {
    server_.stop();
    for (std::thread& worker : workers_) worker.join();
  }
  const std::string& address() const { return address_; }
  Server& server() { return server_; }
  int resumed() const { return resumed_; }
  int waiting() const { return waiting_; }
  int produced() const { return produced_; }
  int received() const { return received_; }

 private:
  struct Producer {
    std::unique_ptr<Stream> stream;
    int next = 0;
    int count = 0;
  };

  void work() {
    Work work;
    while (true) {
      const NextResult next = server_.next(work, kNever, kUninterrupted);
      if (next == NextResult::kEnded) return;
      if (next != NextResult::kWork) continue;
      const std::string method(work.call->method());
      if (method == "unary")
        reply(work, "yes");
      else if (method == "produce")
        produce(work);
      else
        stream(work, method);
    }
  }
  void reply(const Work& work, const std::string& payload) {
    (void)server_.reply(work.handle, {.payload = as_bytes(payload)});
  }
  void stream(const Work& work, const std::string& method) {
    const auto stream = server_.stream(work.handle).value();
    Status status;
    long sum = 0;
    if (method == "count") {
      const int count = std::stoi(std::string(as_text(work.call->payload())));
      for (int i = 0; i < count && status.ok(); ++i) status = send(*stream, std::to_string(i));
    } else {
      ++waiting_;
      while (status.ok()) {
        auto items = receive(*stream);
        status = items.status();
        if (!items.ok() || items->empty()) break;
        received_ += static_cast<int>(items->size());
        for (rpc::Item& item : *items) {
          if (method == "sum") sum += std::stol(text_of(item));
          if (method == "echo") status = echo(*stream, item);
        }
      }
      --waiting_;
    }
    if (status.ok()) return reply(work, std::to_string(sum));
    (void)server_.reply(work.handle, {.status = status});
  }
  static Status echo(Stream& stream, rpc::Item& item) {
    rpc::OutgoingItem back{item.payload()};
    for (const endpoint::ReceivedBlock& block : item.blocks())
      back.buffers.push_back(owning_buffer({block.data(), block.data() + block.size()}));
    return send(stream, std::move(back));
  }
  void produce(const Work& work) {
    Producer* producer = nullptr;
    {
      std::lock_guard lock(producers_mutex_);
      producer = &producers_[work.handle];
    }
    if (work.resumed) {
      ++resumed_;
    } else {
      producer->stream = server_.stream(work.handle).value();
      producer->count = std::stoi(std::string(as_text(work.call->payload())));
    }
    Status failure;
    while (producer->next < producer->count) {
      const std::string payload = std::to_string(producer->next);
      rpc::OutgoingItem item{as_bytes(payload)};
      const Outcome outcome = producer->stream->try_send(item, true, failure);
      if (outcome == Outcome::kNotYet) return (void)server_.park(work.handle);
      if (outcome == Outcome::kFailed) break;
      ++producer->next;
      ++produced_;
    }
    {
      std::lock_guard lock(producers_mutex_);
      producers_.erase(work.handle);
    }
    reply(work, failure.ok() ? "all" : "some");
  }

  Server server_;
  std::string address_;
  std::vector<std::thread> workers_;
  std::mutex producers_mutex_;
  std::map<uint64_t, Producer> producers_;
  std::atomic<int> resumed_{0};
  std::atomic<int> waiting_{0};
  std::atomic<int> produced_{0};
  std::atomic<int> received_{0};
};

struct OpenCall {
  rpc::ClientCallRef call = std::make_shared<rpc::ClientCall>();
  std::unique_ptr<Stream> stream;
};
OpenCall open(Client& client, const std::string& method, uint8_t kind, const std::string& payload = "") {
  OpenCall made;
  rpc::CallRequest request{method, as_bytes(payload), {}, std::nullopt, deadline_after(now_ns(), patience(kLongest))};
  request.kind = kind;
  auto stream = client.open(made.call, std::move(request));
  EXPECT_TRUE(stream.ok()) << stream.status().to_string();
  if (stream.ok()) made.stream = std::move(*stream);
  return made;
}
std::string result(Client& client, const OpenCall& call) {
  while (client.wait(call.call, kNever, kUninterrupted) != WaitResult::kDone) {
  }
  if (!call.call->status().ok()) return call.call->status().to_string();
  return std::string(as_text(call.call->payload()));
}
std::string call_unary(Client& client) {
  auto call = std::make_shared<rpc::ClientCall>();
  rpc::CallRequest request{"unary", {}, {}, std::nullopt, deadline_after(now_ns(), patience(kLongest))};
  EXPECT_TRUE(client.start(call, std::move(request)).ok());
  return result(client, {call, nullptr});
}

class DriverStream : public ::testing::TestWithParam<Way> {
 protected:
  static Options options() {
    Options made;
    made.poll = GetParam().poll;
    return made;
  }
  static std::unique_ptr<Client> connect(const StreamServer& server, const Options& with = options()) {
    return Client::connect(server.address(), secured(server.address(), with, "client"), patiently_ms(10'000)).value();
  }
};

void expect_count(Client& client, int count) {
  OpenCall call = open(client, "count", rpc::kServerStreams, std::to_string(count));
  int next = 0;
  while (true) {
    const auto items = receive(*call.stream);
    ASSERT_TRUE(items.ok()) << items.status().to_string();
    if (items->empty()) break;
    for (const rpc::Item& item : *items) ASSERT_EQ(text_of(item), std::to_string(next++));
  }
  EXPECT_EQ(next, count);
  EXPECT_EQ(result(client, call), "0");
}

void expect_sum(Client& client, int count) {
  OpenCall call = open(client, "sum", rpc::kClientStreams);
  for (int i = 0; i < count; ++i) ASSERT_TRUE(send(*call.stream, std::to_string(i)).ok());
  call.stream->finish();
  EXPECT_EQ(result(client, call), std::to_string(static_cast<long>(count) * (count - 1) / 2));
}

// Each side waits for the other, again and again: a wake-up that is lost hangs.
void expect_echo(Client& client, int rounds, size_t buffer_bytes) {
  OpenCall call = open(client, "echo", rpc::kClientStreams | rpc::kServerStreams);
  for (int i = 0; i < rounds; ++i) {
    const std::string payload = std::to_string(i);
    rpc::OutgoingItem item{as_bytes(payload)};
    const std::vector<std::byte> bytes = pattern(buffer_bytes, static_cast<uint64_t>(i));
    if (buffer_bytes > 0) item.buffers.push_back(owning_buffer(bytes));
    ASSERT_TRUE(send(*call.stream, std::move(item)).ok());
    auto items = receive(*call.stream);
    ASSERT_TRUE(items.ok()) << items.status().to_string();
    ASSERT_EQ(items->size(), 1u);
    EXPECT_EQ(text_of(items->front()), payload);
    if (buffer_bytes == 0) continue;
    ASSERT_EQ(items->front().blocks().size(), 1u);
    EXPECT_EQ(std::memcmp(items->front().blocks()[0].data(), bytes.data(), bytes.size()), 0);
  }
  call.stream->finish();
  EXPECT_TRUE(receive(*call.stream).value().empty());
  EXPECT_EQ(result(client, call), "0");
}

TEST_P(DriverStream, ItemsGoBothWays) {
  StreamServer server(GetParam().transport, 2, options());
  const auto client = connect(server);
  expect_count(*client, scaled(20'000));
  expect_sum(*client, scaled(20'000));
  expect_echo(*client, scaled(500), 0);
  expect_echo(*client, scaled(100), 100'000);
}

TEST_P(DriverStream, ItemsLandInMemoryOfTheUsers) {
  StreamServer server(GetParam().transport, 2, options());
  const auto client = connect(server);
  OpenCall call = open(*client, "echo", rpc::kClientStreams | rpc::kServerStreams);
  call.stream->land_by_hand();
  EXPECT_TRUE(call.stream->wanted().empty());
  EXPECT_TRUE(call.stream->land({}).ok());  // nothing waits for it
  for (const size_t length_bytes : {20'000u, 300'000u, 1u}) {
    const std::vector<std::byte> bytes = pattern(length_bytes, length_bytes);
    rpc::OutgoingItem item{as_bytes("two")};
    item.buffers = {owning_buffer(bytes), owning_buffer({bytes.rbegin(), bytes.rend()})};
    ASSERT_TRUE(send(*call.stream, std::move(item)).ok());
    std::vector<rpc::Item> items;
    Status failure;
    while (call.stream->try_receive(1, items, true, failure) == Outcome::kNotYet)
      (void)call.stream->wait_for_items(kNever, kUninterrupted);
    ASSERT_TRUE(items.empty() && failure.ok()) << failure.to_string();
    EXPECT_EQ(call.stream->wanted(), (std::vector<size_t>{length_bytes, length_bytes}));
    EXPECT_EQ(call.stream->land({owning_buffer(bytes)}).code(), StatusCode::kInvalidArgument);
    const endpoint::Buffer first = owning_buffer(std::vector<std::byte>(length_bytes));
    const endpoint::Buffer second = owning_buffer(std::vector<std::byte>(length_bytes));
    ASSERT_TRUE(call.stream->land({first, second}).ok());
    const auto landed = receive(*call.stream);
    ASSERT_TRUE(landed.ok()) << landed.status().to_string();
    ASSERT_EQ(landed->size(), 1u);
    ASSERT_EQ(landed->front().memory().size(), 2u);
    EXPECT_EQ(landed->front().memory()[1].data, second.data);
    EXPECT_EQ(std::memcmp(first.data, bytes.data(), length_bytes), 0);
    EXPECT_TRUE(std::equal(bytes.rbegin(), bytes.rend(), second.data));
  }
  call.stream->finish();
  EXPECT_EQ(result(*client, call), "0");
}

TEST_P(DriverStream, ACallEndsWhileItsItemsWaitForMemory) {
  StreamServer server(GetParam().transport, 2, options());
  const auto client = connect(server);
  for (const bool cancels : {true, false}) {
    OpenCall call = open(*client, "echo", rpc::kClientStreams | rpc::kServerStreams);
    call.stream->land_by_hand();
    rpc::OutgoingItem item{as_bytes("one")};
    item.buffers = {owning_buffer(pattern(100'000, 1))};
    ASSERT_TRUE(send(*call.stream, std::move(item)).ok());
    while (call.stream->wanted().empty()) (void)call.stream->wait_for_items(kNever, kUninterrupted);
    if (cancels)
      call.stream->cancel(cancelled("by hand"));
    else
      server.server().stop();
    const std::string ended = result(*client, call);
    EXPECT_NE(ended, "0");
    EXPECT_FALSE(call.stream->land({owning_buffer(pattern(100'000, 1))}).ok() && !call.stream->wanted().empty());
  }
}

TEST_P(DriverStream, ItemsThatWaitForOthersAreSentThoughTheirSenderStaysAway) {
  StreamServer server(GetParam().transport, 2, options());
  const auto client = connect(server);
  OpenCall call = open(*client, "sum", rpc::kClientStreams);
  constexpr int kRounds = 10, kItems = 20;
  for (int round = 1; round <= kRounds; ++round) {
    for (int i = 0; i < kItems; ++i) ASSERT_TRUE(send(*call.stream, {as_bytes("1")}, true).ok());
    ASSERT_TRUE(eventually([&] { return server.received() == round * kItems; })) << "round " << round;
  }
  call.stream->finish();
  EXPECT_EQ(result(*client, call), std::to_string(kRounds * kItems));
}

TEST_P(DriverStream, ManyStreamsShareAConnection) {
  StreamServer server(GetParam().transport, 8, options());
  const auto client = connect(server);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&client, i] {
      if (i % 3 == 0) expect_count(*client, scaled(3000));
      if (i % 3 == 1) expect_sum(*client, scaled(3000));
      if (i % 3 == 2) expect_echo(*client, scaled(200), i % 2 == 0 ? 0 : 20'000);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DriverStream, ASlowConsumerStopsItsProducerAndNobodyElse) {
  Options small = options();
  small.session.stream_window_items = 10;
  StreamServer server(GetParam().transport, 2, options());
  const auto client = connect(server, small);
  const OpenCall call = open(*client, "produce", rpc::kServerStreams, "1000");
  ASSERT_TRUE(eventually([&] { return server.produced() == 10; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(call_unary(*client), "yes");
  EXPECT_EQ(server.produced(), 10);
  size_t taken = 0;
  while (true) {
    const auto items = receive(*call.stream, 3);
    ASSERT_TRUE(items.ok());
    if (items->empty()) break;
    taken += items->size();
    EXPECT_LE(server.produced(), static_cast<int>(taken) + 10);
  }
  EXPECT_EQ(taken, 1000u);
  EXPECT_EQ(result(*client, call), "all");
}

TEST_P(DriverStream, ParkedStreamsHoldNoWorker) {
  Options small = options();
  small.session.stream_window_items = 4;
  StreamServer server(GetParam().transport, 1, options());
  const auto client = connect(server, small);
  std::deque<OpenCall> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(open(*client, "produce", rpc::kServerStreams, "100"));
  ASSERT_TRUE(eventually([&] { return server.produced() == 20 * 4; }));
  EXPECT_EQ(call_unary(*client), "yes");
  EXPECT_EQ(server.server().calls_running(), 20u) << "a parked call is still being handled";
  calls.front().stream->cancel(cancelled("by the test"));
  for (size_t i = 1; i < calls.size(); ++i) {
    size_t taken = 0;
    for (size_t got = 1; got > 0; taken += got) got = receive(*calls[i].stream).value().size();
    EXPECT_EQ(taken, 100u);
    EXPECT_EQ(result(*client, calls[i]), "all");
  }
  EXPECT_TRUE(eventually([&] { return server.server().calls_running() == 0; })) << "a parked call's end was not told";
  EXPECT_GT(server.resumed(), 0);
}

TEST_P(DriverStream, ACancelWakesWhoWaits) {
  StreamServer server(GetParam().transport, 1, options());
  const auto client = connect(server);
  for (int i = 0; i < scaled(20); ++i) {
    const OpenCall call = open(*client, "wait", rpc::kClientStreams | rpc::kServerStreams);
    std::thread waiter([&call] { EXPECT_EQ(receive(*call.stream).status().code(), StatusCode::kCancelled); });
    ASSERT_TRUE(i % 2 == 1 || eventually([&] { return server.waiting() == 1; }));
    call.stream->cancel(cancelled("by the test"));
    waiter.join();
    ASSERT_TRUE(eventually([&] { return server.server().calls_running() == 0; })) << "the handler waits on";
  }
}

TEST_P(DriverStream, ALostPeerWakesWhoWaits) {
  auto server = std::make_unique<StreamServer>(GetParam().transport, 2, options());
  auto client = connect(*server);
  {
    const OpenCall call = open(*client, "wait", rpc::kClientStreams);
    ASSERT_TRUE(eventually([&] { return server->waiting() == 1; }));
    client->close();
    EXPECT_TRUE(eventually([&] { return server->waiting() == 0; }));
    EXPECT_EQ(send(*call.stream, "late").code(), StatusCode::kUnavailable);
  }
  client = connect(*server);
  const OpenCall call = open(*client, "wait", rpc::kClientStreams | rpc::kServerStreams);
  std::thread waiter([&call] { EXPECT_EQ(receive(*call.stream).status().code(), StatusCode::kUnavailable); });
  ASSERT_TRUE(eventually([&] { return server->waiting() == 1; }));
  server.reset();
  waiter.join();
}

TEST_P(DriverStream, AtItsDeadlineACallEndsForWhoWaits) {
  StreamServer server(GetParam().transport, 1, options());
  const auto client = connect(server);
  auto call = std::make_shared<rpc::ClientCall>();
  rpc::CallRequest request{"wait", {}, {}, std::nullopt, in_ms(50)};
  request.kind = rpc::kClientStreams | rpc::kServerStreams;
  const auto stream = client->open(call, std::move(request)).value();
  EXPECT_EQ(receive(*stream).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(eventually([&] { return server.server().calls_running() == 0; }));
}

// A process rings one bell for all its connections. A handler that waits for its stream's items hears it first.
void expect_bells_passed_on(PollMode poll) {
  Options options;
  options.poll = poll;
  options.spin = 50 * kMicrosecond;
  options.session.keepalive_interval = kNever;
  StreamServer server("shm", 2, options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 12; ++i) clients.push_back(connect_to(server.address(), options));
  for (const auto& client : clients) EXPECT_EQ(call_unary(*client), "yes");
  OpenCall call = open(*clients[10], "echo", rpc::kClientStreams | rpc::kServerStreams);
  const TimeNs before = now_ns();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(send(*call.stream, "item").ok());
    EXPECT_EQ(call_unary(*clients[11]), "yes");
    EXPECT_EQ(receive(*call.stream).value().size(), 1u);
  }
  EXPECT_LT(now_ns() - before, patience(5 * kSecond)) << "woken by its nap, not by the bell";
  call.stream->finish();
  EXPECT_EQ(result(*clients[10], call), "0");
}
TEST(DriverStreamOfMany, ABellThatAHandlerHeardWakesThePollerToo) { expect_bells_passed_on(PollMode::kEvent); }
TEST(DriverStreamOfMany, ABellThatAHandlerHeardWhileItPolledWakesThePollerToo) {
  expect_bells_passed_on(PollMode::kAdaptive);
}

INSTANTIATE_TEST_SUITE_P(All, DriverStream,
                         ::testing::ValuesIn(ways(transports_under_test(), {PollMode::kAdaptive, PollMode::kEvent})),
                         way_name);

}  // namespace
}  // namespace rrpc::driver::testing
