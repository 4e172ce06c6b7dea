// How memory is made known to an adapter, with a libibverbs of the test's own: none of the adapters that tests have
// takes a device's memory.
#include "provider/verbs/registering.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "provider/verbs/protection_domain.h"

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
int g_gone = 0;       // registrations
std::vector<ibv_advise_mr_advice> g_advice;
std::vector<ibv_sge> g_brought_in;
int g_cannot_bring_in = 0;  // an errno
ibv_odp_caps g_on_demand{};
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

int ibv_dereg_mr(ibv_mr*) {
  ++g_gone;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr*) { return ENOSYS; }

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  static ibv_pd domain{};
  domain.context = context;
  return &domain;
}

int ibv_dealloc_pd(ibv_pd*) { return 0; }
int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

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

// An adapter with extended verbs of the test's own.
class OnDemandTest : public RegisteringTest {
 protected:
  OnDemandTest() {
    device_.transport_type = IBV_TRANSPORT_IB;
    extended_.sz = sizeof(extended_);
    extended_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    extended_.context.device = &device_;
    extended_.advise_mr = [](ibv_pd*, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* pieces, uint32_t count) {
      EXPECT_EQ(flags, IBV_ADVISE_MR_FLAG_FLUSH) << "what can't be had is to be known before the registration is used";
      g_advice.push_back(advice);
      g_brought_in.insert(g_brought_in.end(), pieces, pieces + count);
      return g_cannot_bring_in;
    };
    extended_.query_device_ex = [](ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes,
                                   size_t) {
      *attributes = {};
      attributes->odp_caps = g_on_demand;
      return 0;
    };
    g_gone = g_cannot_bring_in = 0;
    g_advice.clear();
    g_brought_in.clear();
    domain_ = ProtectionDomain::create(&extended_.context, true, true).value();
  }
  MemoryRange range(bool of_user, bool only_read) {
    return {.address = bytes_.data(), .length_bytes = bytes_.size(), .of_user = of_user, .only_read = only_read};
  }
  // As asked of the library last.
  int access_of(const MemoryRange& range) {
    EXPECT_TRUE(domain_->register_range(++owner_, range).ok());
    return g_asked.access & ~IBV_ACCESS_RELAXED_ORDERING;
  }

  ibv_device device_{};
  verbs_context extended_{};
  std::array<std::byte, 64> bytes_{};
  std::shared_ptr<ProtectionDomain> domain_;
  uint64_t owner_ = 0;
};

constexpr int kWindowed = IBV_ACCESS_MW_BIND;
constexpr int kPinned = IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE;

TEST_F(OnDemandTest, UsersArraysAreBroughtInAndNotPinned) {
  EXPECT_EQ(access_of(range(true, true)), kWindowed | IBV_ACCESS_ON_DEMAND);
  EXPECT_EQ(access_of(range(true, false)), kPinned | IBV_ACCESS_ON_DEMAND);
  EXPECT_EQ(g_count, 2);
  ASSERT_EQ(g_brought_in.size(), 2u);
  EXPECT_EQ(g_brought_in[0].addr, reinterpret_cast<uint64_t>(bytes_.data()));
  EXPECT_EQ(g_brought_in[0].length, bytes_.size());
  for (const auto advice : g_advice) EXPECT_EQ(advice, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE) << "a window's";
}

TEST_F(OnDemandTest, ThePoolIsPinned) {
  EXPECT_EQ(access_of(range(false, false)), kPinned);
  EXPECT_TRUE(g_brought_in.empty());
}

TEST_F(OnDemandTest, NothingIsBroughtInWhereThatIsNotWanted) {
  domain_ = ProtectionDomain::create(&extended_.context, true, false).value();
  EXPECT_EQ(access_of(range(true, true)), kWindowed);
}

TEST_F(OnDemandTest, ReadingAloneAsksForNoWrite) {
  const auto registered = register_with_adapter(domain_->handle(), range(true, true), bytes_.data(), 64,
                                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(registered.ok());
  EXPECT_EQ(g_advice, std::vector{IBV_ADVISE_MR_ADVICE_PREFETCH});
}

TEST_F(OnDemandTest, MemoryThatCannotBeBroughtInIsRegisteredAsWithoutIt) {
  g_cannot_bring_in = EFAULT;  // of an array that the process can't write: the usual registration then fails, too
  EXPECT_EQ(access_of(range(true, true)), kWindowed);
  EXPECT_EQ(g_gone, 1) << "the registration on demand";
}

TEST_F(OnDemandTest, AnAdapterThatRefusesIsAskedWithout) {
  g_not_known = IBV_ACCESS_ON_DEMAND;
  EXPECT_EQ(access_of(range(true, true)), kWindowed);
  EXPECT_TRUE(g_brought_in.empty());
}

TEST_F(OnDemandTest, LargeMemoryIsBroughtInByPieces) {
  constexpr size_t kGib = size_t{1} << 30;
  MemoryRange large = range(true, true);
  large.length_bytes = 2 * kGib + 5;  // never touched here
  ASSERT_TRUE(domain_->register_range(1, large).ok());
  ASSERT_EQ(g_brought_in.size(), 3u);
  EXPECT_EQ(g_brought_in[2].addr, reinterpret_cast<uint64_t>(bytes_.data()) + 2 * kGib);
  EXPECT_EQ(g_brought_in[2].length, 5u);
}

TEST_F(OnDemandTest, ADevicesMemoryIsNotBroughtInThatWay) {
  ASSERT_TRUE(register_with_adapter(domain_->handle(), device_range(), device_address(), 1000,
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND)
                  .ok());
  EXPECT_TRUE(g_asked.dmabuf);
  EXPECT_EQ(g_asked.access, IBV_ACCESS_REMOTE_READ);
}

TEST_F(OnDemandTest, AnAdapterOffersItThatDoesItForAllThatIsUsed) {
  constexpr uint32_t kAll = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  const auto offers = [&](uint64_t general, uint32_t of_connections) {
    g_on_demand.general_caps = general;
    g_on_demand.per_transport_caps.rc_odp_caps = of_connections;
    return offers_on_demand(&extended_.context);
  };
  EXPECT_TRUE(offers(IBV_ODP_SUPPORT, kAll));
  EXPECT_FALSE(offers(0, kAll));
  for (uint32_t lacking = 1; lacking < kAll; lacking <<= 1) EXPECT_FALSE(offers(IBV_ODP_SUPPORT, kAll & ~lacking));
  extended_.context.abi_compat = nullptr;
  EXPECT_FALSE(offers(IBV_ODP_SUPPORT, kAll)) << "a library without the question";
}

TEST(OnDemand, IsOnWhereTheEnvironmentSaysSo) {
  EXPECT_FALSE(on_demand_wanted(nullptr));
  EXPECT_FALSE(on_demand_wanted("0"));
  EXPECT_TRUE(on_demand_wanted("1"));
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
