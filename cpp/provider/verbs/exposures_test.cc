// How memory windows are opened, closed and used again, with a libibverbs of the test's own: Soft-RoCE on Linux 6.1
// crashes when a window is invalidated twice, and other software adapters have none.
#include "provider/verbs/exposures.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "provider/verbs/region.h"

#undef ibv_reg_mr

namespace {

std::deque<ibv_mw> g_windows;
std::vector<ibv_mw*> g_deallocated;
std::deque<ibv_mr> g_registrations;
int g_deregistered = 0;

ibv_mw* allocate_window(ibv_pd* domain, ibv_mw_type type) {
  const auto number = static_cast<uint32_t>(g_windows.size());
  g_windows.push_back(
      {.context = domain->context, .pd = domain, .rkey = (number + 1) << 8, .handle = number, .type = type});
  return &g_windows.back();
}
int deallocate_window(ibv_mw* window) {
  g_deallocated.push_back(window);
  return 0;
}

}  // namespace

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  static ibv_pd domain;
  domain.context = context;
  return &domain;
}
int ibv_dealloc_pd(ibv_pd*) { return 0; }
int ibv_query_device(ibv_context*, ibv_device_attr*) { return ENOSYS; }
ibv_mr* ibv_reg_mr(ibv_pd* domain, void*, size_t, int) {
  ibv_mr& made = g_registrations.emplace_back();
  made.pd = domain;
  return &made;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length, uint64_t, unsigned int access) {
  return ibv_reg_mr(domain, address, length, static_cast<int>(access));
}
int ibv_dereg_mr(ibv_mr*) {
  ++g_deregistered;
  return 0;
}
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
int ibv_fork_init() { return 0; }
}

namespace rrpc::provider::verbs {
namespace {

// A queue pair that notes what it is to carry out.
struct Work final : InternalWork {
  Status post_bind(ibv_mw*, uint32_t rkey, const ibv_mw_bind_info&) override {
    bound.push_back(rkey);
    return {};
  }
  Status post_invalidate(uint32_t rkey) override {
    if (invalidated.size() == room) return resource_exhausted("no room");
    invalidated.push_back(rkey);
    return {};
  }
  Status post_barrier(uint32_t) override { return {}; }
  bool alive() const override { return connection != kEnded; }
  bool connected() const override { return connection == kConnected; }

  enum { kConnected, kEnding, kEnded } connection = kConnected;
  size_t room = 16;
  std::vector<uint32_t> bound;
  std::vector<uint32_t> invalidated;
};

class WindowsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    g_windows.clear();
    g_deallocated.clear();
    g_registrations.clear();
    g_deregistered = 0;
    context_.device = &device_;
    context_.ops.alloc_mw = &allocate_window;
    context_.ops.dealloc_mw = &deallocate_window;
    domain_ = ProtectionDomain::create(&context_, true, false).value();
    exposures_ = std::make_unique<WindowExposures>(domain_, work_, GetParam());
  }
  uint32_t open() { return exposures_->open(region_, bytes_.data(), bytes_.size(), kRemoteRead).value(); }
  // Those that a window of its own stands on, and that are still made.
  int exact_registrations() const {
    const int of_the_region = GetParam() ? 0 : 1;
    return static_cast<int>(g_registrations.size()) - of_the_region - g_deregistered;
  }

  std::array<std::byte, 64> bytes_{};
  ibv_device device_{};
  ibv_context context_{};
  VerbsRegion region_{{.address = bytes_.data(), .length_bytes = bytes_.size()}};
  std::shared_ptr<ProtectionDomain> domain_;
  Work work_;
  std::unique_ptr<WindowExposures> exposures_;
};

TEST_P(WindowsTest, WhatThePeerHasClosedNeedsNoRequest) {
  const uint32_t key = open();
  EXPECT_TRUE(exposures_->on_closed_by_peer(key));
  EXPECT_FALSE(exposures_->closing(key));
  EXPECT_TRUE(exposures_->close(key));
  EXPECT_TRUE(work_.invalidated.empty());
  EXPECT_EQ(exact_registrations(), 0);
  EXPECT_EQ(open(), key + 1) << "the same window, with its next key";
  EXPECT_EQ(g_windows.size(), 1u);
}

TEST_P(WindowsTest, WhatThePeerHasClosedIsItsOwnersUntilItClosesIt) {
  const uint32_t key = open();
  ASSERT_TRUE(exposures_->on_closed_by_peer(key));
  EXPECT_NE(open() >> 8, key >> 8) << "another window";
  EXPECT_EQ(exact_registrations(), GetParam() ? 2 : 0);
}

TEST_P(WindowsTest, ThePeerClosesAKeyOnce) {
  const uint32_t key = open();
  ASSERT_TRUE(exposures_->on_closed_by_peer(key));
  EXPECT_FALSE(exposures_->on_closed_by_peer(key));
  EXPECT_TRUE(exposures_->close(key));
  EXPECT_FALSE(exposures_->on_closed_by_peer(key)) << "nor when its owner is done with it";
  EXPECT_TRUE(exposures_->close(key));
  const uint32_t again = open();
  EXPECT_NE(open() >> 8, again >> 8) << "the window was given back once";
  EXPECT_FALSE(exposures_->on_closed_by_peer(key)) << "an old key";
  EXPECT_TRUE(exposures_->on_closed_by_peer(again));
}

TEST_P(WindowsTest, AKeyThatNeverWasIsNoneThatAPeerCloses) {
  const uint32_t key = open();
  EXPECT_FALSE(exposures_->on_closed_by_peer(key ^ 1));
  EXPECT_FALSE(exposures_->on_closed_by_peer(0));
  EXPECT_FALSE(exposures_->close(key));
  EXPECT_EQ(work_.invalidated, std::vector<uint32_t>{key});
}

TEST_P(WindowsTest, AKeyThatIsBeingClosedHereIsNotThePeersToClose) {
  const uint32_t key = open();
  EXPECT_FALSE(exposures_->close(key));
  EXPECT_FALSE(exposures_->on_closed_by_peer(key));
  EXPECT_TRUE(exposures_->closing(key));
  exposures_->on_closed(key);
  EXPECT_FALSE(exposures_->closing(key));
  EXPECT_EQ(work_.invalidated.size(), 1u);
  EXPECT_NE(open() >> 8, open() >> 8);
}

// For want of room its request waits; by then the peer can't have closed it, or its connection has ended.
TEST_P(WindowsTest, SoIsOneWhoseRequestWaits) {
  work_.room = 0;
  const uint32_t key = open();
  EXPECT_FALSE(exposures_->close(key));
  EXPECT_FALSE(exposures_->on_closed_by_peer(key));
  work_.connection = Work::kEnded;
  EXPECT_TRUE(exposures_->close(key));
  EXPECT_EQ(g_deallocated.size(), 1u);
}

// The peer's reply may still arrive: a request of this end's would be the second that closes the key.
TEST_P(WindowsTest, WhileTheConnectionEndsAWindowIsDestroyedInstead) {
  const uint32_t key = open();
  work_.connection = Work::kEnding;
  EXPECT_TRUE(exposures_->close(key));
  EXPECT_TRUE(work_.invalidated.empty());
  EXPECT_EQ(g_deallocated, std::vector<ibv_mw*>{&g_windows.front()});
  EXPECT_EQ(exact_registrations(), 0);
  EXPECT_FALSE(exposures_->on_closed_by_peer(key));
}

TEST_P(WindowsTest, ARequestThatWasPostedBeforeTheEndIsWaitedFor) {
  const uint32_t key = open();
  EXPECT_FALSE(exposures_->close(key));
  work_.connection = Work::kEnding;
  EXPECT_FALSE(exposures_->close(key));
  EXPECT_TRUE(g_deallocated.empty());
}

// Its request was flushed, or never posted, and completes as nothing.
TEST_P(WindowsTest, WhatIsBeingClosedIsOverOnceTheQueuePairIsFlushed) {
  work_.room = 1;
  const uint32_t posted = open();
  const uint32_t deferred = open();
  const uint32_t stays = open();
  EXPECT_FALSE(exposures_->close(posted));
  EXPECT_FALSE(exposures_->close(deferred));
  work_.connection = Work::kEnded;
  EXPECT_TRUE(exposures_->closing(posted));
  exposures_->end_closing();
  EXPECT_FALSE(exposures_->closing(posted));
  EXPECT_FALSE(exposures_->closing(deferred));
  EXPECT_EQ(g_deallocated.size(), 2u);
  EXPECT_EQ(exact_registrations(), GetParam() ? 1 : 0);
  EXPECT_TRUE(exposures_->close(stays));
  EXPECT_EQ(g_deallocated.size(), 3u);
}

TEST_P(WindowsTest, EveryWindowGoesOnce) {
  const uint32_t closed = open();
  (void)open();
  ASSERT_TRUE(exposures_->on_closed_by_peer(closed));
  exposures_.reset();
  EXPECT_EQ(g_deallocated.size(), 2u);
  EXPECT_NE(g_deallocated[0], g_deallocated[1]);
  EXPECT_EQ(exact_registrations(), 0);
}

INSTANTIATE_TEST_SUITE_P(, WindowsTest, ::testing::Bool(), [](const auto& tested) {
  return tested.param ? "OnARegistrationOfTheirOwn" : "OnTheRegionsRegistration";
});

}  // namespace
}  // namespace rrpc::provider::verbs
