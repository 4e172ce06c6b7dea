// Bytes that follow a message over tcp for the READ that its receiver is going to post.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "provider/provider.h"
#include "provider/tcp/frame.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::provider::tcp {
namespace {

constexpr size_t kMemoryBytes = 16 << 20;

// One end, polled only when a test says so.
struct End {
  explicit End(Device& device) : cq(device.create_completion_queue(1024)), memory(kMemoryBytes) {
    region = std::move(device.register_memory({.address = memory.data(), .length_bytes = memory.size()})).value();
  }
  void poll() {
    Completion out[16];
    const size_t count = cq->poll(out);
    completions.insert(completions.end(), out, out + count);
  }
  bool has(uint64_t wr_id) const {
    return std::ranges::any_of(completions, [=](const Completion& c) { return c.wr_id == wr_id; });
  }
  Bytes bytes(size_t at, size_t length_bytes) const { return Bytes(memory).subspan(at, length_bytes); }

  std::unique_ptr<CompletionQueue> cq;
  std::vector<std::byte> memory;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> qp;
  std::vector<Completion> completions;
};

class PushTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kFirstReceive = 1000;

  void SetUp() override {
    for (size_t i = 0; i < owner_.memory.size(); ++i) owner_.memory[i] = static_cast<std::byte>(i * 31 + i / 4096);
    auto listener = device_->listen("127.0.0.1:0", {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    auto opened = device_->open(*owner_.cq, (*listener)->address(), {}, kNever);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    owner_.qp = std::move(opened).value();
    ASSERT_TRUE(owner_.qp->start({}).ok());
    ASSERT_TRUE(wait_for([&] {
      auto accepted = (*listener)->accept(*reader_.cq, {.receive_depth = 100});
      if (accepted.ok()) reader_.qp = std::move(accepted).value();
      return reader_.qp != nullptr;
    }));
    ASSERT_TRUE(reader_.qp->start({}).ok());
    ASSERT_TRUE(wait_for([&] {
      return owner_.qp->state() == QueuePairState::kConnected && reader_.qp->state() == QueuePairState::kConnected;
    }));
    EXPECT_EQ(owner_.qp->limits().pushed_bytes_max, kPushedBytesMax);
    // All messages land in one place: nobody reads them.
    const Sge message{reader_.memory.data() + kMemoryBytes - 64, 64, reader_.region.get()};
    for (uint64_t i = 0; i < 100; ++i)
      ASSERT_TRUE(reader_.qp->post_receive({.wr_id = kFirstReceive + i, .sge = message}).ok());
  }

  template <typename Condition>
  [[nodiscard]] bool wait_for(Condition condition, bool with_owner = true) {
    for (const TimeNs deadline = now_ns() + 10 * kSecond; !condition();) {
      if (now_ns() >= deadline) return false;
      if (with_owner) owner_.poll();
      reader_.poll();
    }
    return true;
  }
  RemoteRange expose(size_t at, size_t length_bytes) {
    const auto rkey = owner_.qp->expose(*owner_.region, owner_.memory.data() + at, length_bytes, kRemoteRead);
    EXPECT_TRUE(rkey.ok());
    return {reinterpret_cast<uint64_t>(owner_.memory.data() + at), length_bytes, *rkey};
  }
  // A message with those behind it; all of it is in the socket, as far as that has room, when this returns.
  void send(std::vector<RemoteRange> pushes) {
    const Sge sge{owner_.memory.data(), 8, owner_.region.get()};
    const WorkRequest request{.wr_id = 1, .sges = {&sge, 1}, .inline_data = true, .pushes = pushes};
    ASSERT_TRUE(owner_.qp->post_send({&request, 1}).ok());
  }
  void read(uint64_t wr_id, const RemoteRange& range, size_t at, size_t offset = 0, size_t length_bytes = 0) {
    if (length_bytes == 0) length_bytes = static_cast<size_t>(range.length_bytes);
    const Sge sge{reader_.memory.data() + at, static_cast<uint32_t>(length_bytes), reader_.region.get()};
    const WorkRequest request{.wr_id = wr_id,
                              .opcode = Opcode::kRead,
                              .sges = {&sge, 1},
                              .remote_address = range.address + offset,
                              .rkey = range.rkey};
    ASSERT_TRUE(reader_.qp->post_send({&request, 1}).ok());
  }
  [[nodiscard]] bool wait_message(size_t index = 0, bool with_owner = false) {
    return wait_for([&] { return reader_.has(kFirstReceive + index); }, with_owner);
  }
  [[nodiscard]] bool wait_read(uint64_t wr_id, bool with_owner) {
    return wait_for([&] { return reader_.has(wr_id); }, with_owner);
  }
  bool came(size_t at, size_t from, size_t length_bytes) const {
    return std::ranges::equal(reader_.bytes(at, length_bytes), owner_.bytes(from, length_bytes));
  }

  std::unique_ptr<Device> device_ = create_tcp_device();
  End owner_{*device_};
  End reader_{*device_};
};

constexpr size_t kSmall = 10'000;  // the socket has room for several

TEST_F(PushTest, AReadOfWhatWasPushedNeedsNothingOfItsOwner) {
  const RemoteRange range = expose(100, kSmall);
  send({range});
  ASSERT_TRUE(wait_message());
  read(5, range, 0);
  ASSERT_TRUE(wait_read(5, false));
  EXPECT_TRUE(came(0, 100, kSmall));
}

TEST_F(PushTest, AMebibyteComesWhole) {
  const RemoteRange range = expose(0, kPushedBytesMax);
  send({range});
  ASSERT_TRUE(wait_message());
  read(5, range, 64);
  ASSERT_TRUE(wait_read(5, true));
  EXPECT_TRUE(came(64, 0, kPushedBytesMax));
}

TEST_F(PushTest, OneMoreByteIsAskedFor) {
  const RemoteRange first = expose(0, kSmall);
  const RemoteRange second = expose(kSmall, kPushedBytesMax - kSmall + 1);
  send({first, second});
  ASSERT_TRUE(wait_message());
  read(5, first, 0);
  read(6, second, kSmall);
  ASSERT_TRUE(wait_read(5, false));
  for (int i = 0; i < 100; ++i) reader_.poll();
  EXPECT_FALSE(reader_.has(6));
  ASSERT_TRUE(wait_read(6, true));
  EXPECT_TRUE(came(0, 0, kPushedBytesMax + 1));
}

TEST_F(PushTest, WithoutAReadItIsDroppedAndTheNextMessageComes) {
  const RemoteRange range = expose(0, kPushedBytesMax);
  send({range});
  send({});
  ASSERT_TRUE(wait_message(1, true));
  read(5, range, 0);  // late: it is asked for
  ASSERT_TRUE(wait_read(5, true));
  EXPECT_TRUE(came(0, 0, kPushedBytesMax));
}

TEST_F(PushTest, ReadsInAnotherOrderAreServed) {
  const std::vector<RemoteRange> ranges = {expose(0, kSmall), expose(kSmall, kSmall), expose(2 * kSmall, kSmall)};
  send(ranges);
  ASSERT_TRUE(wait_message());
  for (size_t i = ranges.size(); i-- > 0;) read(5 + i, ranges[i], i * kSmall);
  // They complete in the order in which they were posted.
  ASSERT_TRUE(wait_read(5, false));
  EXPECT_TRUE(came(0, 0, 3 * kSmall));
  std::vector<uint64_t> order;
  for (const Completion& completion : reader_.completions)
    if (completion.opcode == Opcode::kRead) order.push_back(completion.wr_id);
  EXPECT_EQ(order, (std::vector<uint64_t>{7, 6, 5}));
}

TEST_F(PushTest, ReadsOfPartsAreServedAndTheRestIsDropped) {
  const RemoteRange range = expose(0, kSmall);
  send({range});
  send({});
  ASSERT_TRUE(wait_message());
  read(5, range, 0, 0, 1000);
  read(6, range, 1000, 1000, 2000);
  ASSERT_TRUE(wait_read(6, false));
  EXPECT_TRUE(came(0, 0, 3000));
  ASSERT_TRUE(wait_message(1));
  read(7, range, 3000, 3000, 500);
  ASSERT_TRUE(wait_read(7, true));
  EXPECT_TRUE(came(0, 0, 3500));
}

TEST_F(PushTest, AReadOfSomethingElseWaitsForThePushesOnly) {
  const RemoteRange pushed = expose(0, kSmall);
  const RemoteRange other = expose(kSmall, kSmall);
  send({pushed});
  ASSERT_TRUE(wait_message());
  read(5, other, 0);
  ASSERT_TRUE(wait_read(5, true));
  EXPECT_TRUE(came(0, kSmall, kSmall));
}

TEST_F(PushTest, RevokedMemoryMayChangeAtOnce) {
  const std::vector<std::byte> before = owner_.memory;
  std::vector<RemoteRange> ranges;
  for (size_t at = 0; at < kMemoryBytes; at += kPushedBytesMax) ranges.push_back(expose(at, kPushedBytesMax));
  for (const RemoteRange& range : ranges) send({range});  // more than the socket takes
  for (const RemoteRange& range : ranges) EXPECT_TRUE(owner_.qp->revoke(range.rkey));
  std::ranges::fill(owner_.memory, std::byte{0xee});
  size_t pushed = 0;
  for (; pushed < ranges.size(); ++pushed) {
    ASSERT_TRUE(wait_message(pushed, true));
    read(5 + pushed, ranges[pushed], pushed * kPushedBytesMax);
    ASSERT_TRUE(wait_read(5 + pushed, true)) << pushed;
    if (reader_.completions.back().status != WcStatus::kSuccess) break;  // its turn had not come
  }
  EXPECT_GT(pushed, 0u);
  EXPECT_TRUE(
      std::ranges::equal(reader_.bytes(0, pushed * kPushedBytesMax), Bytes(before).first(pushed * kPushedBytesMax)));
}

TEST_F(PushTest, WhatWasRevokedBeforeIsNotPushed) {
  const RemoteRange range = expose(0, kSmall);
  EXPECT_TRUE(owner_.qp->revoke(range.rkey));
  send({range});
  ASSERT_TRUE(wait_message());
  read(5, range, 0);
  ASSERT_TRUE(wait_for([&] { return reader_.qp->state() == QueuePairState::kError; }));
  EXPECT_NE(reader_.qp->error().message().find("no such key"), std::string::npos) << reader_.qp->error().to_string();
}

TEST_F(PushTest, NothingIsPushedForAWhileToWhoAsksAllTheSame) {
  const RemoteRange range = expose(0, kSmall);
  send({range});
  send({});
  ASSERT_TRUE(wait_message(1));  // the push is dropped
  read(5, range, 0);
  ASSERT_TRUE(wait_read(5, true));
  size_t message = 2;
  size_t asked = 0;
  for (uint64_t i = 0; asked == i && i < 90; ++i) {
    send({range});
    ASSERT_TRUE(wait_message(message++));
    read(10 + i, range, 0);
    for (int k = 0; k < 20; ++k) reader_.poll();
    if (!reader_.has(10 + i)) ++asked;
    ASSERT_TRUE(wait_read(10 + i, true));
  }
  EXPECT_EQ(asked, 64u);
}

// A queue pair that ends gives every READ back, those too that wait for a push.
TEST_F(PushTest, HeldReadsAreFlushed) {
  const RemoteRange range = expose(0, kPushedBytesMax);
  send({range});
  ASSERT_TRUE(wait_message());
  read(5, range, 0);
  read(6, expose(kPushedBytesMax, kSmall), kPushedBytesMax);
  owner_.qp.reset();
  ASSERT_TRUE(wait_for([&] { return reader_.has(5) && reader_.has(6); }, false));
  EXPECT_EQ(reader_.completions.back().status, WcStatus::kFlushed);
}

}  // namespace
}  // namespace rrpc::provider::tcp
