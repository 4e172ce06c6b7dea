#include "base/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace rrpc {
namespace {

struct MemoryLimit : testing::Test {
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "rrpc-limit-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root = name;
  }
  void TearDown() override { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text << "\n";
  }
  std::string root;
};

TEST_F(MemoryLimit, WithoutGroupsItIsTheMachines) {
  const auto machine = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(memory_limit_bytes(root), machine);
  write("/proc/self/cgroup", "0::/a/b");
  write("/sys/fs/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(memory_limit_bytes(root), machine);
  write("/sys/fs/cgroup/a/b/memory.max", "18446744073709551615");
  EXPECT_EQ(memory_limit_bytes(root), machine);
}

TEST_F(MemoryLimit, TheLowestOfAGroupAndItsAncestorsHolds) {
  write("/proc/self/cgroup", "0::/a/b/c");
  write("/sys/fs/cgroup/a/b/c/memory.max", "30000000");
  EXPECT_EQ(memory_limit_bytes(root), 30'000'000u);
  write("/sys/fs/cgroup/a/memory.max", "10000000");
  EXPECT_EQ(memory_limit_bytes(root), 10'000'000u);
  write("/sys/fs/cgroup/memory.max", "5000000");
  EXPECT_EQ(memory_limit_bytes(root), 5'000'000u);
}

TEST_F(MemoryLimit, GroupsOfVersionOneCountToo) {
  write("/proc/self/cgroup", "7:cpu,memory:/docker/123\n3:cpuset:/other\n0::/");
  write("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1000000");
  write("/sys/fs/cgroup/memory/docker/123/memory.limit_in_bytes", "20000000");
  EXPECT_EQ(memory_limit_bytes(root), 20'000'000u);
}

TEST_F(MemoryLimit, InAContainerTheMountsRootIsItsGroup) {
  write("/proc/self/cgroup", "4:memory:/docker/of/the/host");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "20000000");
  EXPECT_EQ(memory_limit_bytes(root), 20'000'000u);
}

TEST_F(MemoryLimit, GarbageIsNoLimit) {
  write("/proc/self/cgroup", "garbage\n0:\n::\n0::/a");
  write("/sys/fs/cgroup/a/memory.max", "garbage");
  EXPECT_GT(memory_limit_bytes(root), size_t{1} << 20);
}

}  // namespace
}  // namespace rrpc
