#include "endpoint/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "endpoint/counters.h"

namespace rrpc::endpoint {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

int64_t used() { return total(&Counters::pool_bytes_used); }
int64_t committed() { return total(&Counters::pool_bytes_committed); }

TEST(Pool, BlocksAreAlignedWritableAndApart) {
  Pool pool(64 * kMiB);
  std::vector<PoolBlock> blocks;
  for (size_t length = 1; length <= 4 * kMiB; length = length * 5 / 3 + 1) {
    blocks.push_back(pool.allocate(length).value());
    EXPECT_EQ(blocks.back().size(), length);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data()) % 4096, 0u);
    std::memset(blocks.back().data(), static_cast<int>(blocks.size()), length);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].data()[0], std::byte(i + 1));
    EXPECT_EQ(blocks[i].data()[blocks[i].size() - 1], std::byte(i + 1));
  }
}

TEST(Pool, AFreedBlockIsUsedAgain) {
  Pool pool(kMiB);
  const int64_t before = used();
  PoolBlock block = pool.allocate(10000).value();
  std::byte* data = block.data();
  EXPECT_GE(used(), before + 10000);
  block = {};
  EXPECT_EQ(used(), before);
  EXPECT_EQ(pool.allocate(9999).value().data(), data);
}

TEST(Pool, MovesGiveBackOnce) {
  Pool pool(kMiB);
  const int64_t before = used();
  {
    PoolBlock a = pool.allocate(5000).value();
    PoolBlock b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
    a = pool.allocate(5000).value();
    b = std::move(a);
  }
  EXPECT_EQ(used(), before);
}

TEST(Pool, TheCapIsKeptAndNamed) {
  Pool pool(kMiB);
  EXPECT_EQ(pool.allocate(2 * kMiB).status().code(), StatusCode::kResourceExhausted);
  std::vector<PoolBlock> blocks;
  Status status;
  while (blocks.size() < 100) {
    auto block = pool.allocate(100000);
    status = block.status();
    if (!block.ok()) break;
    blocks.push_back(std::move(*block));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(std::to_string(kMiB)), std::string::npos) << status.message();
  EXPECT_GE(blocks.size(), 8u);
  blocks.clear();
  EXPECT_TRUE(pool.allocate(kMiB).ok()) << "free blocks of other sizes make room";
}

TEST(Pool, TrimGivesPagesBack) {
  Pool pool(64 * kMiB);
  const int64_t before = committed();
  {
    PoolBlock large = pool.allocate(8 * kMiB).value();
    PoolBlock small = pool.allocate(100).value();
    EXPECT_GE(committed(), before + static_cast<int64_t>(8 * kMiB));
    pool.trim();
    EXPECT_GE(committed(), before + static_cast<int64_t>(8 * kMiB)) << "what is in use stays";
  }
  pool.trim();
  EXPECT_EQ(committed(), before);
  EXPECT_EQ(pool.allocate(100).value().data()[0], std::byte{0}) << "trimmed pages come back empty";
}

TEST(Pool, ALowerLimitTakesEffect) {
  Pool pool(64 * kMiB);
  const int64_t before = committed();
  (void)pool.allocate(8 * kMiB).value();
  pool.set_limit(kMiB);
  EXPECT_EQ(pool.limit_bytes(), kMiB);
  EXPECT_LE(committed() - before, static_cast<int64_t>(kMiB));
  EXPECT_FALSE(pool.allocate(8 * kMiB).ok());
}

TEST(Pool, FindsTheSlabOfAnAddress) {
  Pool pool(64 * kMiB);
  const PoolBlock block = pool.allocate(5000).value();
  const auto slab = pool.find(block.data() + 4999);
  ASSERT_NE(slab, nullptr);
  EXPECT_EQ(slab, pool.find(block.data()));
  EXPECT_EQ(slab.get(), &block.slab());
  EXPECT_FALSE(slab->range().peers_may_write);
  int local = 0;
  EXPECT_EQ(pool.find(reinterpret_cast<std::byte*>(&local)), nullptr);
}

TEST(Pool, ReadersGetADescriptorThatCannotWrite) {
  Pool pool(64 * kMiB);
  const PoolBlock block = pool.allocate(5000).value();
  std::memcpy(block.data(), "mine", 4);
  const provider::MemoryRange range = block.slab().range();
  EXPECT_LT(pwrite(range.fd, "x", 1, 0), 0);
  char found[4];
  const auto offset = static_cast<off_t>(range.file_offset) + (block.data() - range.address);
  EXPECT_EQ(pread(range.fd, found, 4, offset), 4);
  EXPECT_EQ(std::memcmp(found, "mine", 4), 0);
}

size_t open_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  return count;
}

TEST(Pool, AnyNumberOfBlocksNeedsFewDescriptors) {
  Pool pool(size_t{1} << 40);
  const size_t before = open_descriptors();
  std::vector<PoolBlock> blocks;
  for (int i = 0; i < 10'000; ++i) {
    blocks.push_back(pool.allocate(200'000).value());
    blocks.back().data()[0] = std::byte(i);
  }
  EXPECT_LE(open_descriptors() - before, 16u);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(blocks[static_cast<size_t>(i)].data()[0], std::byte(i));
  EXPECT_TRUE(pool.allocate(size_t{8} << 30).ok()) << "one that is larger than any extent so far";
}

TEST(Pool, FreedRangesServeBlocksOfOtherSizes) {
  Pool pool(64 * kMiB);
  for (size_t length = 200'000; length < 60 * kMiB; length = length * 3 / 2) {
    std::vector<PoolBlock> blocks;
    for (auto block = pool.allocate(length); block.ok(); block = pool.allocate(length))
      blocks.push_back(std::move(*block));
    EXPECT_GE(blocks.size() * length, 25 * kMiB) << length;
  }
  EXPECT_LE(pool.extent_count(), 2u);
}

TEST(Pool, BlocksWithPagesAreTakenWhereNoMoreMayBeCommitted) {
  Pool pool(64 * kMiB);
  std::vector<PoolBlock> blocks;
  while (pool.committed_bytes() < 8 * kMiB) blocks.push_back(pool.allocate(4096).value());
  pool.set_limit(8 * kMiB);
  EXPECT_FALSE(pool.allocate(4096).ok());
  const std::byte* const last = blocks.back().data();
  blocks.pop_back();
  EXPECT_EQ(pool.allocate(4096).value().data(), last);
}

struct PoolRest : testing::Test {
  void tend_for(TimeNs duration) {
    for (const TimeNs end = now + duration; now < end; now = std::max(now + 1, std::min(end, pool.tend(now)))) {
    }
  }
  Pool pool{64 * kMiB};
  TimeNs now = 1000 * kSecond;
};

TEST_F(PoolRest, WhatRestedGivesItsPagesBack) {
  (void)pool.allocate(40 * kMiB).value();
  const PoolBlock held = pool.allocate(5000).value();
  tend_for(pool.idle_timeout() * 3 / 4);
  EXPECT_GE(pool.committed_bytes(), 40 * kMiB);
  tend_for(pool.idle_timeout());
  EXPECT_LE(pool.committed_bytes(), 8192u);
  held.data()[4999] = std::byte{1};
}

TEST_F(PoolRest, WhatIsUsedNowAndThenStays) {
  for (int i = 0; i < 20; ++i) {
    (void)pool.allocate(8 * kMiB).value();
    tend_for(pool.idle_timeout() / 2);
    EXPECT_GE(pool.committed_bytes(), 8 * kMiB);
  }
}

TEST_F(PoolRest, ATurnGivesBackOnlyAsMuchAsAPollerHasTimeFor) {
  std::byte* const data = pool.allocate(60 * kMiB).value().data();
  std::fill_n(data, 60 * kMiB, std::byte{1});
  std::byte* const last = data + 60 * kMiB - 1;
  TimeNs next = pool.tend(now);
  for (; data[0] != std::byte{0}; now = next) next = pool.tend(now);
  EXPECT_EQ(*last, std::byte{1});
  EXPECT_LE(next - now, kSecond);
  for (int turns = 0; *last != std::byte{0}; ++turns) {
    ASSERT_LE(turns, 8);
    now = pool.tend(now);
  }
  pool.tend(now);
  EXPECT_EQ(pool.committed_bytes(), 0u);
}

TEST_F(PoolRest, WithoutATimeoutNothingGoes) {
  pool.set_idle_timeout(kNever);
  (void)pool.allocate(8 * kMiB).value();
  EXPECT_EQ(pool.tend(now), kNever);
  tend_for(100 * Pool::kIdleTimeoutDefault);
  EXPECT_GE(pool.committed_bytes(), 8 * kMiB);
}

TEST(Pool, TrimSaysWhatItGaveBack) {
  Pool pool(64 * kMiB);
  EXPECT_EQ(pool.trim(), 0u);
  (void)pool.allocate(8 * kMiB).value();
  (void)pool.allocate(kMiB, BlockKind::kLanding).value();
  EXPECT_EQ(pool.trim(), 9 * kMiB);
  EXPECT_EQ(pool.trim(), 0u);
}

TEST(Pool, WhatWasPrefaultedIsTakenFirstAndStays) {
  Pool pool(64 * kMiB);
  ASSERT_TRUE(pool.prefault(8 * kMiB).ok());
  for (int i = 0; i < 2; ++i) {
    const PoolBlock block = pool.allocate(8 * kMiB, BlockKind::kLanding).value();
    EXPECT_EQ(block.data()[0], std::byte{static_cast<unsigned char>(i)}) << "the page of the block before";
    block.data()[0] = std::byte{1};
  }
  const std::byte* const data = pool.allocate(8 * kMiB, BlockKind::kLanding).value().data();
  pool.trim();
  EXPECT_EQ(pool.committed_bytes(), 0u);
  EXPECT_EQ(data[0], std::byte{1});
  EXPECT_TRUE(pool.prefault(SIZE_MAX).ok()) << "no more than the limit";
}

TEST(Pool, ALargeLandingBlockIsWhatWasWrittenWhilePagesCameIn) {
  Pool pool(256 * kMiB);
  for (int i = 1; i < 6; ++i) {
    const PoolBlock block = pool.allocate(40 * kMiB + 1, BlockKind::kLanding).value();
    std::fill_n(block.data(), block.size(), std::byte(i));
    EXPECT_EQ(std::count(block.data(), block.data() + block.size(), std::byte(i)),
              static_cast<ptrdiff_t>(block.size()));
    pool.trim();
  }
}

// What a transfer may still be working on.
TEST(Pool, AHeldSlabKeepsItsPagesBeyondTrimsAndItsRangeToItself) {
  for (const BlockKind kind : {BlockKind::kShared, BlockKind::kLanding}) {
    Pool pool(64 * kMiB);
    PoolBlock block = pool.allocate(kMiB, kind).value();
    std::byte* const data = block.data();
    data[0] = data[kMiB - 1] = std::byte{42};
    std::shared_ptr<Slab> held = pool.find(data);
    block = {};
    EXPECT_EQ(pool.trim(), 0u);
    EXPECT_EQ(data[0], std::byte{42});
    EXPECT_EQ(data[kMiB - 1], std::byte{42});
    EXPECT_EQ(pool.committed_bytes(), kMiB);
    EXPECT_NE(pool.allocate(kMiB, kind).value().data(), data);
    pool.trim();
    held.reset();
    EXPECT_EQ(pool.committed_bytes(), 0u);
    EXPECT_EQ(pool.allocate(kMiB, kind).value().data()[0], std::byte{0});
  }
}

TEST(Pool, AHeldSlabMayOutliveItsPool) {
  auto pool = std::make_unique<Pool>(64 * kMiB);
  const std::byte* const data = pool->allocate(kMiB).value().data();
  const std::shared_ptr<Slab> held = pool->find(data);
  pool.reset();
  EXPECT_EQ(held->data()[0], std::byte{0});
}

// The child's blocks are its own; the parent's, which it shares, it neither gives back nor hands out.
TEST(Pool, AForkedChildHasAPoolOfItsOwn) {
  PoolBlock held = Pool::process().allocate(5000).value();
  std::memcpy(held.data(), "parent", 7);
  Pool* const parents = &Pool::process();
  const pid_t child = fork();
  if (child == 0) {
    bool good = &Pool::process() != parents && used() == 0;
    held = {};  // as when the child's interpreter drops the parent's arrays
    good = good && used() == 0;
    for (int i = 0; i < 100; ++i) {
      PoolBlock block = Pool::process().allocate(5000).value();
      std::memcpy(block.data(), "child!", 7);
      good = good && used() > 0;
    }
    _exit(good && used() == 0 ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(held.data()), "parent");
}

}  // namespace
}  // namespace rrpc::endpoint
