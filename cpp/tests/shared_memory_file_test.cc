// What a descriptor of shared memory is good for in the hands of another user.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/memfd.h"

namespace rrpc {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr uid_t kNobody = 65534;

bool becomes_nobody() {
  return setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
         setresuid(kNobody, kNobody, kNobody) == 0;
}

// Runs in a child of another user, which has inherited the descriptor; 0 when all is as it should be.
int attack(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (open(path.c_str(), O_RDWR) >= 0 || open(path.c_str(), O_WRONLY) >= 0) return 1;
  if (fchmod(fd, 0666) == 0) return 2;
  if (mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 3;
  if (pwrite(fd, "evil", 4, 0) >= 0 || ftruncate(fd, 0) == 0) return 4;
  const void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return 5;
  return std::memcmp(mapped, "mine", 4) == 0 ? 0 : 6;
}

TEST(SharedMemoryFile, AnotherUserReadsWhatItIsGivenAndCannotWriteIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const SharedMapping file = SharedMapping::create_read_only("rrpc-test", kBytes).value();
  std::memcpy(file.data(), "mine", 4);
  const pid_t child = fork();
  if (child == 0) _exit(becomes_nobody() ? attack(file.fd()) : 9);
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(WEXITSTATUS(result), 0);
  EXPECT_EQ(std::memcmp(file.data(), "mine", 4), 0);
}

TEST(SharedMemoryFile, TheOwnersPagesCanBeGivenBack) {
  const SharedMapping file = SharedMapping::create_read_only("rrpc-test", kBytes).value();
  file.data()[5000] = std::byte{1};
  EXPECT_EQ(madvise(file.data(), kBytes, MADV_REMOVE), 0);
  EXPECT_EQ(file.data()[5000], std::byte{0});
}

}  // namespace
}  // namespace rrpc
