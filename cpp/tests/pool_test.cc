#include "endpoint/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "endpoint/counters.h"

namespace rrpc::endpoint {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

int64_t used() { return counters().pool_bytes_used; }
int64_t committed() { return counters().pool_bytes_committed; }

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
  const Slab* slab = pool.find(block.data() + 4999);
  ASSERT_NE(slab, nullptr);
  EXPECT_EQ(slab, pool.find(block.data()));
  EXPECT_FALSE(slab->range().peers_may_write);
  int local = 0;
  EXPECT_EQ(pool.find(reinterpret_cast<std::byte*>(&local)), nullptr);
}

TEST(Pool, ReadersGetADescriptorThatCannotWrite) {
  Pool pool(64 * kMiB);
  const PoolBlock block = pool.allocate(5000).value();
  const int fd = pool.find(block.data())->range().fd;
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
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
