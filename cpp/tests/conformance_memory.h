// READ, WRITE and exposed memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>

#include "base/unique_fd.h"
#include "conformance.h"

namespace rrpc::provider::conformance {

TEST_P(ConformanceTest, AReadFetchesTheExposedBytes) {
  connect();
  Buffer& source = buffer(server_, 100'000, 5);
  Buffer& target = buffer(client_, 100'000);
  const uint32_t rkey = expose(server_, source, 0, source.bytes.size(), kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, target.sge(), source.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  EXPECT_EQ(target.bytes, source.bytes);
}

TEST_P(ConformanceTest, AReadMayFetchAnyPart) {
  connect();
  Buffer& source = buffer(server_, 1000, 5);
  Buffer& target = buffer(client_, 1000);
  const uint32_t rkey = expose(server_, source, 100, 800, kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, target.sge(0, 1), source.bytes.data() + 100, rkey).ok());
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 2, target.sge(1, 1), source.bytes.data() + 899, rkey).ok());
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 3, target.sge(2, 0), source.bytes.data() + 500, rkey).ok());
  ASSERT_TRUE(wait_done(client_, 3));
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(client_.status(id), WcStatus::kSuccess);
  EXPECT_EQ(target.bytes[0], source.bytes[100]);
  EXPECT_EQ(target.bytes[1], source.bytes[899]);
}

// Of what takes several polls: who waits for it stays awake.
TEST_P(ConformanceTest, APollTellsThatBytesMove) {
  if (!provider_->polls_move_bytes()) GTEST_SKIP() << "the device moves them";
  connect();
  Buffer& source = buffer(server_, 16 << 20, 5);
  Buffer& target = buffer(client_, 16 << 20);
  const uint32_t rkey = expose(server_, source, 0, source.bytes.size(), kRemoteRead);
  const auto rest = [this] {
    for (int i = 0; i < 3; ++i) step();
    EXPECT_FALSE(client_.cq->moved_bytes());
    EXPECT_FALSE(server_.cq->moved_bytes());
  };
  rest();
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, target.sge(), source.bytes.data(), rkey).ok());
  size_t moving = 0;
  ASSERT_TRUE(wait_for([&] {
    const bool done = client_.find(1) != nullptr;
    moving += !done && client_.cq->moved_bytes();
    return done;
  }));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  EXPECT_GE(moving, 4u);
  rest();
}

TEST_P(ConformanceTest, AReadIsScattered) {
  connect();
  if (client_.qp->limits().read_sge_count_max < 2) GTEST_SKIP() << "reads have one element";
  Buffer& source = buffer(server_, 100'000, 5);
  Buffer& first = buffer(client_, 70'000);
  Buffer& second = buffer(client_, 30'000);
  const uint32_t rkey = expose(server_, source, 0, source.bytes.size(), kRemoteRead);
  const Sge sges[] = {first.sge(), second.sge()};
  ASSERT_TRUE(post(client_, {.wr_id = 1,
                             .opcode = Opcode::kRead,
                             .sges = sges,
                             .remote_address = reinterpret_cast<uint64_t>(source.bytes.data()),
                             .rkey = rkey})
                  .ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(first.text(70'000) + second.text(30'000), source.text(100'000));
}

TEST_P(ConformanceTest, AWriteLandsInTheExposedBytes) {
  connect();
  Buffer& target = buffer(server_, 100'000);
  Buffer& source = buffer(client_, 100'000, 77);
  const uint32_t rkey = expose(server_, target, 0, target.bytes.size(), kRemoteWrite);
  ASSERT_TRUE(post_bulk(client_, Opcode::kWrite, 1, source.sge(), target.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  EXPECT_EQ(target.bytes, source.bytes);
}

TEST_P(ConformanceTest, AWriteLandsBeforeTheSendThatFollows) {
  connect({}, {}, 1);
  Buffer& target = buffer(server_, 1 << 20);
  Buffer& source = buffer(client_, 1 << 20, 77);
  const uint32_t rkey = expose(server_, target, 0, target.bytes.size(), kRemoteWrite);
  ASSERT_TRUE(post_bulk(client_, Opcode::kWrite, 1, source.sge(), target.bytes.data(), rkey).ok());
  ASSERT_TRUE(post_send(client_, 2, buffer(client_, 8).sge()).ok());
  ASSERT_TRUE(wait_done(server_, 1000));
  EXPECT_EQ(target.bytes, source.bytes);
  ASSERT_TRUE(wait_done(client_, 2));
  EXPECT_EQ(client_.completions[0].wr_id, 1u);
}

struct Trespass {
  const char* name;
  Opcode opcode;
  uint32_t rights;
  size_t offset;  // of the exposed 64 bytes at 16
  size_t length_bytes;
  bool wrong_key;
};

class TrespassTest : public ConformanceTest {
 protected:
  void try_it(const Trespass& trespass) {
    connect();
    Buffer& memory = buffer(server_, 128, 5);
    const SharedBytes before = memory.bytes;
    Buffer& own = buffer(client_, 128, 6);
    const uint32_t rkey = expose(server_, memory, 16, 64, trespass.rights) ^ (trespass.wrong_key ? 1u : 0u);
    ASSERT_TRUE(post_bulk(client_, trespass.opcode, 1, own.sge(0, trespass.length_bytes),
                          memory.bytes.data() + trespass.offset, rkey)
                    .ok());
    ASSERT_TRUE(wait_done(client_, 1)) << trespass.name;
    expect_refused(client_, 1);
    if (!provider_->refusals_are_named()) {
      ASSERT_TRUE(wait_for([&] { return client_.dead(); })) << trespass.name;
    }
    EXPECT_TRUE(client_.dead()) << trespass.name;
    EXPECT_EQ(memory.bytes, before) << trespass.name;
    client_.completions.clear();
    client_.qp.reset();
    server_.qp.reset();
  }
};

TEST_P(TrespassTest, IsRefused) {
  constexpr uint32_t kBoth = kRemoteRead | kRemoteWrite;
  for (const Trespass& trespass : {
           Trespass{"read one byte before", Opcode::kRead, kBoth, 15, 8, false},
           Trespass{"read one byte beyond", Opcode::kRead, kBoth, 16, 65, false},
           Trespass{"read the byte after", Opcode::kRead, kBoth, 80, 1, false},
           Trespass{"read far away", Opcode::kRead, kBoth, size_t{0} - 8, 16, false},
           Trespass{"write one byte before", Opcode::kWrite, kBoth, 15, 8, false},
           Trespass{"write one byte beyond", Opcode::kWrite, kBoth, 17, 64, false},
           Trespass{"read without the right", Opcode::kRead, kRemoteWrite, 16, 8, false},
           Trespass{"write without the right", Opcode::kWrite, kRemoteRead, 16, 8, false},
           Trespass{"read with a wrong key", Opcode::kRead, kBoth, 16, 8, true},
           Trespass{"write with a wrong key", Opcode::kWrite, kBoth, 16, 8, true},
       }) {
    SCOPED_TRACE(trespass.name);
    const bool lacks_read = trespass.opcode == Opcode::kRead && (trespass.rights & kRemoteRead) == 0;
    if (lacks_read && !provider_->reads_need_a_right()) continue;
    try_it(trespass);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ConformanceTest, AnAddressThatWrapsAroundIsRefused) {
  connect();
  Buffer& memory = buffer(server_, 64);
  const uint32_t rkey = expose(server_, memory, 0, 64, kRemoteRead);
  const Sge sge = buffer(client_, 64).sge();
  ASSERT_TRUE(
      post(client_,
           {.wr_id = 1, .opcode = Opcode::kRead, .sges = {&sge, 1}, .remote_address = ~uint64_t{0} - 16, .rkey = rkey})
          .ok());
  ASSERT_TRUE(wait_done(client_, 1));
  expect_refused(client_, 1);
}

TEST_P(ConformanceTest, ARefusalEndsTheQueuePairAndFlushesTheRest) {
  connect();
  Buffer& memory = buffer(server_, 64, 3);
  Buffer& own = buffer(client_, 64);
  const uint32_t rkey = expose(server_, memory, 0, 64, kRemoteRead);
  post_receive(client_, 9, own.sge());
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, own.sge(), memory.bytes.data(), rkey).ok());
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 2, own.sge(), memory.bytes.data(), rkey ^ 8).ok());
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 3, own.sge(), memory.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == 4; }));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  expect_refused(client_, 2);
  EXPECT_EQ(client_.status(3), WcStatus::kFlushed);
  EXPECT_EQ(client_.status(9), WcStatus::kFlushed);
  EXPECT_FALSE(client_.qp->error().ok());
}

TEST_P(ConformanceTest, ARevokedKeyIsRefused) {
  connect();
  Buffer& memory = buffer(server_, 64, 3);
  Buffer& own = buffer(client_, 64);
  const uint32_t rkey = expose(server_, memory, 0, 64, kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, own.sge(), memory.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  revoke(server_, rkey);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 2, own.sge(), memory.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 2));
  expect_refused(client_, 2);
}

TEST_P(ConformanceTest, AnOldKeyStaysDeadWhenTheRangeIsExposedAgain) {
  connect();
  Buffer& memory = buffer(server_, 64, 3);
  const uint32_t old_key = expose(server_, memory, 0, 64, kRemoteRead);
  revoke(server_, old_key);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t key = expose(server_, memory, 0, 64, kRemoteRead);
    ASSERT_NE(key, old_key);
    if (i < 999) revoke(server_, key);
  }
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, buffer(client_, 64).sge(), memory.bytes.data(), old_key).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  expect_refused(client_, 1);
}

TEST_P(ConformanceTest, RevokingTwiceOrAnUnknownKeyIsHarmless) {
  connect();
  Buffer& memory = buffer(server_, 64, 3);
  const uint32_t first = expose(server_, memory, 0, 64, kRemoteRead);
  const uint32_t second = expose(server_, memory, 0, 64, kRemoteRead);
  EXPECT_NE(first, second);
  revoke(server_, first);
  revoke(server_, first);
  revoke(server_, first ^ 0x55aa);
  Buffer& own = buffer(client_, 64);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, own.sge(), memory.bytes.data(), second).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
}

TEST_P(ConformanceTest, AnotherQueuePairsKeyIsRefused) {
  connect();
  Buffer& memory = buffer(server_, 64, 3);
  const uint32_t rkey = expose(server_, memory, 0, 64, kRemoteRead);
  spare_.push_back(std::move(client_.qp));
  spare_.push_back(std::move(server_.qp));
  connect();
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, buffer(client_, 64).sge(), memory.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  expect_refused(client_, 1);
}

TEST_P(ConformanceTest, ExposingMemoryOutsideTheRegionIsRefused) {
  connect();
  Buffer& memory = buffer(server_, 64);
  EXPECT_FALSE(server_.qp->expose(*memory.region, memory.bytes.data() + 1, 64, kRemoteRead).ok());
  EXPECT_FALSE(server_.qp->expose(*memory.region, memory.bytes.data() - 1, 2, kRemoteRead).ok());
}

// Whatever arrived before the revocation is the old bytes; what comes after it never shows up in a success.
TEST_P(ConformanceTest, AReadThatOverlapsARevocationNeverDeliversLaterBytes) {
  const int delays = provider_->reads_outlast_their_posting() ? 6 : 1;
  for (int delay = 0; delay < delays; ++delay) {
    connect();
    Buffer& memory = buffer(server_, 8 << 20, 3);
    Buffer& own = buffer(client_, 8 << 20);
    const SharedBytes before = memory.bytes;
    const uint32_t rkey = expose(server_, memory, 0, memory.bytes.size(), kRemoteRead);
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, own.sge(), memory.bytes.data(), rkey).ok());
    for (int i = 0; i < delay; ++i) step();
    revoke(server_, rkey);
    memory.fill(200);
    ASSERT_TRUE(wait_done(client_, 1));
    if (client_.status(1) == WcStatus::kSuccess) {
      EXPECT_TRUE(own.bytes == before);
    }
    client_.qp.reset();
    server_.qp.reset();
    client_.completions.clear();
    server_.completions.clear();
  }
}

TEST_P(ConformanceTest, ARevokedWriteChangesNothingAfterwards) {
  connect();
  Buffer& memory = buffer(server_, 8 << 20, 3);
  Buffer& own = buffer(client_, 8 << 20, 9);
  const uint32_t rkey = expose(server_, memory, 0, memory.bytes.size(), kRemoteWrite);
  ASSERT_TRUE(post_bulk(client_, Opcode::kWrite, 1, own.sge(), memory.bytes.data(), rkey).ok());
  for (int i = 0; i < 2; ++i) step();
  revoke(server_, rkey);
  const SharedBytes then = memory.bytes;
  ASSERT_TRUE(wait_done(client_, 1));
  for (int i = 0; i < 20; ++i) step();
  EXPECT_TRUE(memory.bytes == then);
}

TEST_P(ConformanceTest, ManyReadsStayWithinTheDepthAndInOrder) {
  constexpr uint64_t kCount = 100;
  connect({.read_depth = 4}, {.read_depth = 3});
  EXPECT_LE(client_.qp->limits().read_depth, 4u);
  Buffer& source = buffer(server_, kCount * 1000, 5);
  Buffer& target = buffer(client_, kCount * 1000);
  const uint32_t rkey = expose(server_, source, 0, source.bytes.size(), kRemoteRead);
  for (uint64_t i = 0; i < kCount; ++i) {
    const Sge sge = target.sge(i * 1000, 1000);
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, i, sge, source.bytes.data() + i * 1000, rkey).ok());
  }
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == kCount; }));
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(client_.completions[i].wr_id, i);
    EXPECT_EQ(client_.completions[i].status, WcStatus::kSuccess);
  }
  EXPECT_EQ(target.bytes, source.bytes);
}

TEST_P(ConformanceTest, BothEndsReadAtOnce) {
  constexpr size_t kBytes = 4 << 20;
  connect();
  Buffer& a = buffer(client_, kBytes, 1);
  Buffer& b = buffer(server_, kBytes, 2);
  Buffer& from_b = buffer(client_, kBytes);
  Buffer& from_a = buffer(server_, kBytes);
  const uint32_t key_a = expose(client_, a, 0, kBytes, kRemoteRead);
  const uint32_t key_b = expose(server_, b, 0, kBytes, kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, from_b.sge(), b.bytes.data(), key_b).ok());
  ASSERT_TRUE(post_bulk(server_, Opcode::kRead, 2, from_a.sge(), a.bytes.data(), key_a).ok());
  ASSERT_TRUE(wait_for([&] { return client_.count(1) == 1 && server_.count(2) == 1; }));
  EXPECT_TRUE(from_b.bytes == b.bytes);
  EXPECT_TRUE(from_a.bytes == a.bytes);
}

TEST_P(ConformanceTest, SendsReadsAndWritesMixInOrder) {
  constexpr uint64_t kRounds = 10;
  connect({}, {}, kRounds);
  Buffer& memory = buffer(server_, 300'000, 5);
  Buffer& own = buffer(client_, 300'000, 5);
  const uint32_t rkey = expose(server_, memory, 0, memory.bytes.size(), kRemoteRead | kRemoteWrite);
  for (uint64_t i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 3 * i, own.sge(), memory.bytes.data(), rkey).ok());
    ASSERT_TRUE(post_send(client_, 3 * i + 1, own.sge(0, 100)).ok());
    ASSERT_TRUE(post_bulk(client_, Opcode::kWrite, 3 * i + 2, own.sge(), memory.bytes.data(), rkey).ok());
  }
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == 3 * kRounds; }));
  for (uint64_t i = 0; i < 3 * kRounds; ++i) {
    EXPECT_EQ(client_.completions[i].wr_id, i);
    EXPECT_EQ(client_.completions[i].status, WcStatus::kSuccess);
  }
}

// Kernels pin what memory windows are bound to for writing: there the caller is told to copy it.
TEST_P(ConformanceTest, MemoryThatIsMappedReadOnlyCanBeRead) {
  connect();
  constexpr size_t kBytes = 64 << 10;
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* source = static_cast<std::byte*>(mapped);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 7);
  ASSERT_EQ(mprotect(mapped, kBytes, PROT_READ), 0);
  Buffer& target = buffer(client_, kBytes);
  {
    const auto region = server_.device->register_memory({.address = source, .length_bytes = kBytes});
    ASSERT_TRUE(region.ok()) << region.status().to_string();
    const auto rkey = server_.qp->expose(**region, source, kBytes, kRemoteRead);
    if (rkey.ok()) {
      ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, target.sge(), source, *rkey).ok());
      ASSERT_TRUE(wait_done(client_, 1));
      EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
      EXPECT_TRUE(std::equal(source, source + kBytes, target.bytes.begin()));
      revoke(server_, *rkey);
    } else {
      EXPECT_EQ(server_.qp->exposure_kind(), ExposureKind::kWindow);
      EXPECT_EQ(rkey.status().code(), StatusCode::kFailedPrecondition) << rkey.status().to_string();
    }
  }
  munmap(mapped, kBytes);
}

// No adapter without a driver for it takes a device's memory: refused when it is registered, or when it is exposed.
TEST_P(ConformanceTest, MemoryOfADeviceIsRefusedByName) {
  connect();
  Buffer& source = buffer(server_, 4096, 5);
  Buffer& other = buffer(server_, 4096);
  const UniqueFd file(memfd_create("stands for a dma-buf", MFD_CLOEXEC));
  MemoryRange range = source.region->range();
  range.dmabuf_fd = file.get();
  auto registered = server_.device->register_memory(range);
  Status refused = registered.status();
  if (registered.ok()) refused = server_.qp->expose(**registered, range.address, 4096, kRemoteRead).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnimplemented) << refused.to_string();
  EXPECT_NE(refused.message().find("copy the array to the host"), std::string::npos) << refused.message();
  // Nothing else is disturbed.
  expose(server_, other, 0, 4096, kRemoteRead);
}

TEST_P(ConformanceTest, ALargeRead) {
  connect();
  const size_t message_bytes_max = client_.qp->limits().message_bytes_max;
  ASSERT_GE(message_bytes_max, size_t{1} << 20);
  const size_t bytes = std::min(size_t{64} << 20, message_bytes_max);
  Buffer& source = buffer(server_, bytes, 5);
  Buffer& target = buffer(client_, bytes);
  const uint32_t rkey = expose(server_, source, 0, bytes, kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, target.sge(), source.bytes.data(), rkey).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  EXPECT_TRUE(target.bytes == source.bytes);
}

TEST_P(ConformanceTest, APeerThatDiesDuringAReadFlushesIt) {
  connect();
  const size_t bytes = std::min<size_t>(32 << 20, client_.qp->limits().message_bytes_max);
  Buffer& source = buffer(server_, bytes, 5);
  Buffer& target = buffer(client_, bytes);
  const uint32_t rkey = expose(server_, source, 0, source.bytes.size(), kRemoteRead);
  const uint64_t count = (size_t{128} << 20) / bytes;
  for (uint64_t i = 0; i < count; ++i) {
    const Status posted = post_bulk(client_, Opcode::kRead, i, target.sge(), source.bytes.data(), rkey);
    ASSERT_TRUE(posted.ok()) << posted.to_string();
  }
  server_.qp.reset();
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == count && client_.dead(); }));
  if (provider_->reads_outlast_their_posting()) {
    EXPECT_EQ(client_.status(count - 1), WcStatus::kFlushed);
  }
  EXPECT_EQ(client_.qp->error().code(), StatusCode::kUnavailable) << client_.qp->error().to_string();
}

}  // namespace rrpc::provider::conformance
