// How memory is made known to an adapter, with a libibverbs of the test's own: none of the adapters that tests have
// takes a device's memory.
#include "provider/verbs/registering.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>

#undef ibv_reg_mr

namespace {

struct Asked {
  bool dmabuf = false;
  uint64_t offset = 0;
  uint64_t address = 0;
  size_t length_bytes = 0;
  int fd = -1;
  int access = 0;
} g_asked;
int g_refusal = 0;
int g_not_known = 0;  // of the rights
int g_count = 0;      // of what was asked
ibv_mr g_registration{};

ibv_mr* answer() {
  errno = g_refusal;
  return g_refusal == 0 ? &g_registration : nullptr;
}

}  // namespace

extern "C" {

ibv_mr* ibv_reg_mr(ibv_pd*, void* address, size_t length, int access) {
  g_asked = {.address = reinterpret_cast<uint64_t>(address), .length_bytes = length, .access = access};
  ++g_count;
  if ((access & g_not_known) == 0) return answer();
  errno = EINVAL;
  return nullptr;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length, uint64_t, unsigned int access) {
  return ibv_reg_mr(domain, address, length, static_cast<int>(access));
}

[[gnu::visibility("default")]] ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t offset, size_t length, uint64_t iova, int fd,
                                                         int access) {
  g_asked = {.dmabuf = true, .offset = offset, .address = iova, .length_bytes = length, .fd = fd, .access = access};
  return answer();
}
}

namespace rrpc::provider::verbs {
namespace {

std::byte* device_address() { return reinterpret_cast<std::byte*>(0x7f00'0000'0000); }

MemoryRange device_range() {
  return {.address = device_address(), .length_bytes = 1 << 20, .file_offset = 4096, .dmabuf_fd = 17};
}

class RegisteringTest : public ::testing::Test {
 protected:
  void SetUp() override { g_refusal = g_not_known = g_count = 0; }
};

TEST_F(RegisteringTest, HostMemoryGoesByItsAddress) {
  std::array<std::byte, 64> bytes{};
  const MemoryRange range{.address = bytes.data(), .length_bytes = bytes.size()};
  ASSERT_TRUE(register_with_adapter(nullptr, range, bytes.data() + 8, 16, IBV_ACCESS_REMOTE_READ).ok());
  EXPECT_FALSE(g_asked.dmabuf);
  EXPECT_EQ(g_asked.address, reinterpret_cast<uint64_t>(bytes.data() + 8));
  EXPECT_EQ(g_asked.length_bytes, 16u);
  EXPECT_EQ(g_asked.access, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
}

TEST_F(RegisteringTest, AnAdapterThatKnowsNoRelaxedOrderingDoesWithout) {
  std::array<std::byte, 64> bytes{};
  const MemoryRange range{.address = bytes.data(), .length_bytes = bytes.size()};
  g_not_known = IBV_ACCESS_RELAXED_ORDERING;
  ASSERT_TRUE(register_with_adapter(nullptr, range, bytes.data(), 64, IBV_ACCESS_LOCAL_WRITE).ok());
  EXPECT_EQ(g_asked.access, IBV_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(g_count, 2);
}

TEST_F(RegisteringTest, AnotherRefusalIsFinal) {
  std::array<std::byte, 64> bytes{};
  const MemoryRange range{.address = bytes.data(), .length_bytes = bytes.size()};
  g_refusal = ENOMEM;
  EXPECT_FALSE(register_with_adapter(nullptr, range, bytes.data(), 64, IBV_ACCESS_LOCAL_WRITE).ok());
  EXPECT_EQ(g_count, 1);
}

TEST(RelaxedOrdering, IsOffWhereTheEnvironmentSaysSo) {
  EXPECT_TRUE(relaxed_ordering_wanted(nullptr));
  EXPECT_TRUE(relaxed_ordering_wanted("1"));
  EXPECT_FALSE(relaxed_ordering_wanted("0"));
}

TEST_F(RegisteringTest, DeviceMemoryGoesByItsPlaceInTheDmabuf) {
  const auto registered =
      register_with_adapter(nullptr, device_range(), device_address() + 256, 1000, IBV_ACCESS_REMOTE_READ);
  ASSERT_TRUE(registered.ok()) << registered.status().to_string();
  EXPECT_EQ(*registered, &g_registration);
  EXPECT_TRUE(g_asked.dmabuf);
  EXPECT_EQ(g_asked.offset, 4096u + 256u);
  EXPECT_EQ(g_asked.address, 0x7f00'0000'0100u) << "what peers call it by";
  EXPECT_EQ(g_asked.length_bytes, 1000u);
  EXPECT_EQ(g_asked.fd, 17);
}

TEST_F(RegisteringTest, ARefusalNamesTheCure) {
  g_refusal = EOPNOTSUPP;
  const auto refused = register_with_adapter(nullptr, device_range(), device_address(), 1000, 0);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
  EXPECT_NE(refused.status().message().find("set_device_tensors"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace rrpc::provider::verbs
