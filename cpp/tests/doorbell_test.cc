// Counts the system calls that carry small messages over tcp, and checks that no message waits long for another one.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <thread>
#include <utility>

#include "driver_pair.h"
#include "provider/tcp/tcp_device.h"

static thread_local int g_sends = 0;  // by this thread

extern "C" ssize_t send(int fd, const void* bytes, size_t length_bytes, int flags) {
  ++g_sends;
  return syscall(SYS_sendto, fd, bytes, length_bytes, flags, nullptr, 0);
}
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  ++g_sends;
  return syscall(SYS_sendmsg, fd, message, flags);
}

namespace rrpc::driver::testing {
namespace {

int sends_of(const std::function<void()>& what) {
  const int before = g_sends;
  what();
  return g_sends - before;
}

// --- the provider ------------------------------------------------------------------------------------

using provider::Completion;
using provider::QueuePairState;

constexpr uint32_t kReceives = 10'000;
constexpr uint32_t kSlotBytes = 4096;

struct End {
  explicit End(provider::Device& device) : cq(device.create_completion_queue(2 * kReceives)) {}
  size_t poll() {
    Completion out[16];
    const size_t count = cq->poll(out);
    for (const Completion& completion : std::span(out).first(count)) {
      if (completion.opcode != provider::Opcode::kReceive) continue;
      received.push_back(completion);
      if (completion.place != nullptr)
        std::memcpy(receives + completion.wr_id * kSlotBytes, completion.place, completion.length_bytes);
    }
    return count;
  }
  std::byte* receives = nullptr;
  std::unique_ptr<provider::CompletionQueue> cq;
  std::unique_ptr<provider::QueuePair> qp;
  std::vector<Completion> received;
};

class Doorbell : public ::testing::Test {
 protected:
  void SetUp() override {
    region_ = device_->register_memory({.address = memory_.data(), .length_bytes = memory_.size()}).value();
    receiver_.receives = memory_.data();
    auto listener = device_->listen("127.0.0.1:0", {}).value();
    sender_.qp = device_->open(*sender_.cq, listener->address(), {}, kNever).value();
    ASSERT_TRUE(sender_.qp->start({}).ok());
    ASSERT_TRUE(wait_for([&] {
      auto accepted = listener->accept(*receiver_.cq, {.receive_depth = kReceives});
      if (accepted.ok()) receiver_.qp = std::move(accepted).value();
      return receiver_.qp != nullptr;
    }));
    for (uint32_t i = 0; i < kReceives; ++i)
      ASSERT_TRUE(receiver_.qp->post_receive({i, {slot(i), kSlotBytes, region_.get()}}).ok());
    ASSERT_TRUE(receiver_.qp->start({}).ok());
    ASSERT_TRUE(wait_for([&] {
      return sender_.qp->state() == QueuePairState::kConnected && receiver_.qp->state() == QueuePairState::kConnected;
    }));
  }
  std::byte* slot(size_t index) { return memory_.data() + index * kSlotBytes; }
  template <typename Condition>
  bool wait_for(Condition condition) {
    for (const TimeNs deadline = patiently_ms(10'000); !condition();) {
      if (now_ns() >= deadline) return false;
      (void)sender_.poll();
      (void)receiver_.poll();
    }
    return true;
  }
  bool receives(size_t count) {
    for (const TimeNs deadline = patiently_ms(10'000); receiver_.received.size() < count;) {
      if (now_ns() >= deadline) return false;
      (void)receiver_.poll();
    }
    return true;
  }
  // The message begins with its number. False: there is no room to reserve.
  bool reserve_and_commit(uint32_t length_bytes, bool more) {
    std::byte* const place = sender_.qp->reserve_message(length_bytes);
    if (place == nullptr) return false;
    std::memset(place, 0, length_bytes);
    std::memcpy(place, &next_, sizeof(next_));
    ++next_;
    waits_ = sender_.qp->commit_message(more, provider::QueuePair::kNoCompletion);
    return true;
  }
  void post(uint32_t length_bytes) {
    std::vector<std::byte> bytes(length_bytes);
    std::memcpy(bytes.data(), &next_, sizeof(next_));
    ++next_;
    const provider::Sge sge{bytes.data(), length_bytes, nullptr};
    provider::WorkRequest request{.sges = {&sge, 1}, .signalled = false, .inline_data = true};
    ASSERT_TRUE(sender_.qp->post_send({&request, 1}).ok());
  }
  void expect_all_in_order() {
    ASSERT_TRUE(receives(next_)) << receiver_.received.size() << " of " << next_;
    for (uint32_t i = 0; i < next_; ++i) {
      uint32_t number = 0;
      std::memcpy(&number, slot(i), sizeof(number));
      ASSERT_EQ(number, i);
      ASSERT_EQ(receiver_.received[i].status, provider::WcStatus::kSuccess);
    }
  }

  const std::unique_ptr<provider::Device> device_ = provider::create_tcp_device();
  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{kReceives} * kSlotBytes);
  std::unique_ptr<provider::MemoryRegion> region_;
  End sender_{*device_};
  End receiver_{*device_};
  uint32_t next_ = 0;
  bool waits_ = false;
};

TEST_F(Doorbell, MessagesThatWaitGoOutInOneSend) {
  const int before_ring = sends_of([this] {
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(reserve_and_commit(100, true));
  });
  EXPECT_EQ(before_ring, 0);
  EXPECT_TRUE(waits_);
  EXPECT_EQ(sends_of([this] { sender_.qp->ring(); }), 1);
  EXPECT_EQ(sends_of([this] { sender_.qp->ring(); }), 0) << "nothing waits any more";
  expect_all_in_order();
}

TEST_F(Doorbell, OneThatWaitsForNoneTakesTheOthersAlong) {
  EXPECT_EQ(sends_of([this] {
              for (int i = 0; i < 10; ++i) ASSERT_TRUE(reserve_and_commit(100, i < 9));
            }),
            1);
  EXPECT_FALSE(waits_);
  expect_all_in_order();
}

TEST_F(Doorbell, TheNumberThatWaitsIsBounded) {
  EXPECT_EQ(sends_of([this] {
              for (int i = 0; i < 160; ++i) ASSERT_TRUE(reserve_and_commit(8, true));
            }),
            10);
  EXPECT_FALSE(waits_);
  expect_all_in_order();
}

TEST_F(Doorbell, APollSendsWhatWaits) {
  ASSERT_TRUE(reserve_and_commit(100, true));
  EXPECT_EQ(sends_of([this] { EXPECT_EQ(sender_.poll(), 0u); }), 1);
  expect_all_in_order();
}

TEST_F(Doorbell, APostedMessageGoesWithWhatWaited) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(reserve_and_commit(100, true));
  EXPECT_EQ(sends_of([this] { post(3000); }), 1);
  expect_all_in_order();
}

TEST_F(Doorbell, ADisconnectDeliversWhatWaited) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(reserve_and_commit(100, true));
  sender_.qp->disconnect("the end");
  expect_all_in_order();
}

TEST_F(Doorbell, AFullSocketKeepsTheOrder) {
  while (next_ < kReceives - 100 && reserve_and_commit(2048, next_ % 3 != 0)) {
  }
  ASSERT_LT(next_, kReceives - 100) << "the socket is never full";
  for (int i = 0; i < 50; ++i) {
    post(1024);
    EXPECT_FALSE(reserve_and_commit(8, true)) << "it would overtake what was posted";
  }
  ASSERT_TRUE(wait_for([this] { return receiver_.received.size() == next_; }));
  EXPECT_TRUE(reserve_and_commit(2048, false)) << "there is room again";
  expect_all_in_order();
}

TEST_F(Doorbell, NoMessageOvertakesAReadThatWaitsForOthers) {
  const provider::Sge sge{memory_.data(), 8, region_.get()};
  for (uint32_t i = 0; i <= sender_.qp->limits().read_depth; ++i) {
    EXPECT_TRUE(reserve_and_commit(8, false));
    provider::WorkRequest request{.opcode = provider::Opcode::kRead, .sges = {&sge, 1}, .rkey = 1};
    ASSERT_TRUE(sender_.qp->post_send({&request, 1}).ok());
  }
  EXPECT_FALSE(reserve_and_commit(8, false));
}

// --- the driver --------------------------------------------------------------------------------------

// A client and a server over tcp that take turns in one thread, which is the server's only worker.
class Turns : public ::testing::Test {
 protected:
  ~Turns() override {
    client_->close();
    server_.stop();
  }
  static Options busy() {
    Options options;
    options.poll = PollMode::kBusy;
    return options;
  }
  void start(int count, bool more) {
    for (int i = 0; i < count; ++i) {
      calls_.push_back(client_->new_call());
      ASSERT_TRUE(client_->start(calls_.back(), {"echo", {}, {}, std::nullopt, kNever}, more).ok());
    }
  }
  uint64_t next(HeldReplies* held) {
    Work work;
    NextResult result = NextResult::kInterrupted;
    for (const TimeNs deadline = patiently_ms(10'000); result == NextResult::kInterrupted;)
      result = server_.next(work, deadline, kUninterrupted, Lane::kWorkers, held);
    EXPECT_EQ(result, NextResult::kWork);
    return work.handle;
  }
  void serve(int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(server_.reply(next(&held_), {}, &held_).ok());
    held_.ring();
  }
  void finish() {
    for (const rpc::ClientCallRef& call : std::exchange(calls_, {})) {
      ASSERT_EQ(client_->wait(call, patiently_ms(10'000), kUninterrupted), WaitResult::kDone);
      ASSERT_TRUE(call->status().ok());
    }
  }

  Server server_{busy()};
  const std::unique_ptr<Client> client_ = connect_to(server_.listen(new_address("tcp")).value(), busy());
  std::vector<rpc::ClientCallRef> calls_;
  HeldReplies held_;
};

// Whoever else polls meanwhile only makes it fewer.
TEST_F(Turns, TheRepliesOfOneRoundShareASend) {
  constexpr int kCalls = 32;
  int sends = kCalls;
  for (const TimeNs deadline = patiently_ms(10'000); sends > kCalls / 8 && now_ns() < deadline;) {
    start(kCalls, false);
    sends = sends_of([this] { serve(kCalls); });
    finish();
  }
  EXPECT_LE(sends, kCalls / 8);
}

TEST_F(Turns, AReplyGoesAtOnceWhereNoOtherCallWaits) {
  for (int i = 0; i < 100; ++i) {
    start(1, true);
    ASSERT_TRUE(server_.reply(next(&held_), {}, &held_).ok());
    EXPECT_TRUE(held_.empty());
    finish();
  }
}

TEST_F(Turns, RequestsShareASendWhereManyAreInFlight) {
  constexpr int kInFlight = 48, kMore = 12;
  int sends = kMore;
  for (const TimeNs deadline = patiently_ms(10'000); sends > kMore / 3 && now_ns() < deadline;) {
    start(kInFlight, true);
    sends = sends_of([this] { start(kMore, true); });
    serve(kInFlight + kMore);
    finish();
  }
  EXPECT_LE(sends, kMore / 3);
}

TEST_F(Turns, ARequestThatTheCallerWaitsForGoesAtOnce) {
  start(40, true);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sends_of([this] { start(1, false); }), 1);
  serve(45);
  finish();
}

// The worker stays away in a handler that nobody knew would take long, and the caller polls for nothing else.
TEST_F(Turns, AReplyThatWaitsIsSentWhileAnotherHandlerRunsLong) {
  bool held = false;
  for (const TimeNs deadline = patiently_ms(10'000); !held && now_ns() < deadline;) {
    start(2, false);
    const uint64_t first = next(&held_);
    ASSERT_TRUE(server_.reply(first, {}, &held_).ok());
    held = !held_.empty();
    const uint64_t second = next(&held_);
    EXPECT_EQ(client_->wait(calls_.front(), patiently_ms(10'000), kUninterrupted), WaitResult::kDone)
        << "the reply waits for the other handler";
    ASSERT_TRUE(server_.reply(second, {}, &held_).ok());
    finish();
  }
  EXPECT_TRUE(held);
}

// Keeps both engines' threads away, as a handler does that has the GIL while they want it, until it ends.
class Away {
 public:
  // `meanwhile` has them tick often until they are.
  Away(std::initializer_list<Engine*> engines, const std::function<void()>& meanwhile) {
    count_ = 0;
    wanted_ = static_cast<int>(engines.size());
    stays_ = true;
    flag_ = true;
    for (Engine* const engine : engines) engine->see_to_deferred();
    wait_for_count(wanted_, meanwhile);
  }
  ~Away() {
    stays_ = false;
    wait_for_count(0, std::this_thread::yield);
  }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

  struct Hook : ::testing::Environment {
    void SetUp() override { Engine::set_deferred_hook(&flag_, stay); }
  };

 private:
  static void wait_for_count(int count, const std::function<void()>& meanwhile) {
    for (const TimeNs deadline = patiently_ms(10'000); count_ != count && now_ns() < deadline;) meanwhile();
    EXPECT_EQ(count_, count);
  }
  static void stay() {
    if (++count_ == wanted_) flag_ = false;
    while (stays_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --count_;
  }

  static inline std::atomic<bool> flag_{false}, stays_{false};
  static inline std::atomic<int> count_{0}, wanted_{0};
};

[[maybe_unused]] const auto* const kHook = ::testing::AddGlobalTestEnvironment(new Away::Hook);

TEST_F(Turns, NoReplyWaitsWhileTheEnginesThreadIsAway) {
  for (int i = 0; i < 20; ++i) {
    const auto round = [this] {
      start(2, false);
      serve(2);
      finish();
    };
    round();
    const Away away({&server_.engine(), &client_->engine()}, round);
    start(2, false);
    const uint64_t first = next(&held_);
    ASSERT_TRUE(server_.reply(first, {}, &held_).ok());
    const uint64_t second = next(&held_);
    EXPECT_EQ(client_->wait(calls_.front(), patiently_ms(10'000), kUninterrupted), WaitResult::kDone)
        << "the reply waits for the other handler";
    ASSERT_TRUE(server_.reply(second, {}, &held_).ok());
    held_.ring();
    finish();
  }
}

// Nobody waits, and nobody begins another call.
TEST_F(Turns, RequestsThatWaitAreSentThoughTheirCallerStaysAway) {
  for (int round = 0; round < 20; ++round) {
    start(59, true);
    serve(59);
    finish();
  }
}

TEST(Held, RepliesWaitForQuickHandlersOnlyAndNotForMany) {
  HeldReplies held;
  LongestTime handler;
  EXPECT_FALSE(held.may_wait_for(handler, now_ns())) << "nobody knows yet how long it takes";
  for (int i = 0; i < 100; ++i) handler.took(kMicrosecond);
  EXPECT_TRUE(handler.quick());
  const TimeNs since = now_ns();
  held.add(nullptr, since);
  EXPECT_TRUE(held.may_wait_for(handler, since + HeldReplies::kLongest));
  EXPECT_FALSE(held.may_wait_for(handler, since + HeldReplies::kLongest + 1)) << "they have waited for others";
  handler.took(5 * kMillisecond);
  for (int i = 0; i < 50; ++i) handler.took(kMicrosecond);
  EXPECT_FALSE(held.may_wait_for(handler, since)) << "one in fifty takes long";
}

TEST(Pace, ARequestWaitsOnlyWhereItsCallerComesBackAtOnce) {
  StartPace pace;
  TimeNs now = kSecond;
  const auto start = [&](TimeNs pause) { return pace.may_wait(now += pause, 64); };
  for (int i = 0; i < StartPace::kRowMin; ++i) EXPECT_FALSE(start(kMicrosecond)) << "call " << i;
  EXPECT_TRUE(start(kMicrosecond));
  EXPECT_FALSE(start(StartPace::kSoon)) << "its caller had something else to do";
  EXPECT_FALSE(start(kMicrosecond));
}

TEST(Pace, AWaitIsNoPause) {
  StartPace pace;
  TimeNs now = kSecond;
  for (int i = 0; i <= StartPace::kRowMin; ++i) (void)pace.may_wait(++now, 64);
  pace.waits(++now);
  EXPECT_TRUE(pace.may_wait(now + kSecond, 64));
  pace.waits(now + kSecond + StartPace::kSoon);
  EXPECT_FALSE(pace.may_wait(now + kSecond + StartPace::kSoon, 64)) << "the caller came late to wait";
}

TEST(Pace, AFewCallsInFlightHaveNoneWait) {
  StartPace pace;
  TimeNs now = kSecond;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(pace.may_wait(++now, StartPace::kShare - 1));
  EXPECT_TRUE(pace.may_wait(++now, StartPace::kShare));
  EXPECT_FALSE(pace.may_wait(++now, StartPace::kShare)) << "no more than a share of them";
}

}  // namespace
}  // namespace rrpc::driver::testing
