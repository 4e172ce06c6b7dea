#include "endpoint/registration_cache.h"

#include <gtest/gtest.h>

#include "endpoint/counters.h"
#include "provider/sim/sim_network.h"

namespace rrpc::endpoint {
namespace {

struct RegistrationCacheTest : testing::Test {
  int64_t made() const { return total(&Counters::registrations_made) - made_before; }
  int64_t reused() const { return total(&Counters::registrations_reused) - reused_before; }
  RegionRef get(size_t offset, size_t length_bytes, uint64_t owner_id) {
    return cache.get(memory.data() + offset, length_bytes, owner_id).value();
  }

  provider::sim::SimNetwork network{1};
  std::unique_ptr<provider::Device> device = network.create_device("here");
  Pool pool{size_t{64} << 20};
  RegistrationCache cache{*device, pool, 10000};
  std::vector<std::byte> memory = std::vector<std::byte>(100000);
  const int64_t made_before = total(&Counters::registrations_made);
  const int64_t reused_before = total(&Counters::registrations_reused);
};

TEST_F(RegistrationCacheTest, TheSameMemoryOfTheSameOwnerIsRegisteredOnce) {
  const RegionRef first = get(0, 1000, 1);
  EXPECT_EQ(get(0, 1000, 1), first);
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(reused(), 1);
  EXPECT_NE(get(0, 1000, 2), first) << "another owner's";
  EXPECT_NE(get(0, 999, 1), first) << "another length";
  EXPECT_EQ(cache.pinned_bytes(), 2999u);
}

TEST_F(RegistrationCacheTest, MemoryThatIsOnlyReadIsRegisteredForThatAlone) {
  const RegionRef written = get(0, 1000, 1);
  const RegionRef only_read = cache.get(memory.data(), 1000, 1, true).value();
  EXPECT_FALSE(written->range().only_read);
  EXPECT_TRUE(only_read->range().only_read);
  EXPECT_EQ(cache.get(memory.data(), 1000, 1, true).value(), only_read);
  EXPECT_EQ(get(0, 1000, 1), written);
  cache.evict_owner(1);
  EXPECT_EQ(cache.pinned_bytes(), 0u);
}

TEST_F(RegistrationCacheTest, PoolMemoryIsNotTheUsers) {
  const PoolBlock block = pool.allocate(1000).value();
  EXPECT_FALSE(cache.get(block.data(), 1000, kNoOwner).value()->range().of_user);
  EXPECT_TRUE(get(0, 1000, 1)->range().of_user);
}

TEST_F(RegistrationCacheTest, MemoryWithoutAnOwnerIsNotKept) {
  std::weak_ptr<provider::MemoryRegion> region = get(0, 1000, kNoOwner);
  EXPECT_TRUE(region.expired());
  EXPECT_EQ(cache.pinned_bytes(), 0u);
}

TEST_F(RegistrationCacheTest, AnOwnersEndTakesItsEntriesAndNoOthers) {
  std::weak_ptr<provider::MemoryRegion> mine = get(0, 1000, 5);
  std::weak_ptr<provider::MemoryRegion> mine_too = get(2000, 1000, 5);
  std::weak_ptr<provider::MemoryRegion> before = get(0, 1000, 4);
  std::weak_ptr<provider::MemoryRegion> after = get(0, 1000, 6);
  const RegionRef in_use = mine.lock();
  cache.evict_owner(5);
  EXPECT_TRUE(mine_too.expired());
  EXPECT_FALSE(before.expired() || after.expired());
  EXPECT_EQ(cache.pinned_bytes(), 2000u);
  EXPECT_NE(get(0, 1000, 5), in_use) << "an address used again is registered anew";
  cache.evict_owner(99);
}

TEST_F(RegistrationCacheTest, TheLeastUsedGoesFirst) {
  std::weak_ptr<provider::MemoryRegion> first = get(0, 4000, 1);
  std::weak_ptr<provider::MemoryRegion> second = get(4000, 4000, 2);
  (void)get(0, 4000, 1);
  (void)get(8000, 4000, 3);
  EXPECT_FALSE(first.expired());
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(cache.pinned_bytes(), 8000u);
}

TEST_F(RegistrationCacheTest, WhatAloneIsOverTheLimitIsNotKept) {
  std::weak_ptr<provider::MemoryRegion> kept = get(0, 4000, 1);
  std::weak_ptr<provider::MemoryRegion> huge = get(0, 50000, 2);
  EXPECT_TRUE(huge.expired());
  EXPECT_FALSE(kept.expired()) << "and drives out nothing";
  EXPECT_EQ(cache.pinned_bytes(), 4000u);
}

TEST_F(RegistrationCacheTest, PoolSlabsAreRegisteredOnceForAllBlocks) {
  const PoolBlock a = pool.allocate(5000).value();
  const PoolBlock b = pool.allocate(5000).value();
  const RegionRef region = cache.get(a.data(), 5000, kNoOwner).value();
  EXPECT_EQ(cache.get(b.data(), 5000, 7).value(), region);
  EXPECT_TRUE(region->contains(b.data(), 5000));
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(cache.pinned_bytes(), 0u) << "the pool has a limit of its own";
}

// The adapter keeps the pages that it was given: those that the memory gets after a trim are others.
TEST_F(RegistrationCacheTest, PagesUnderALiveRegistrationAreNeverGivenBack) {
  for (const bool whole_slab : {true, false}) {
    PoolBlock block = pool.allocate(size_t{1} << 20).value();
    std::byte* const data = block.data();
    data[0] = std::byte{42};
    RegionRef region = whole_slab ? cache.get(data, 5000, kNoOwner).value() : cache.register_once({data, 5000}).value();
    block = {};
    EXPECT_EQ(pool.trim(), 0u);
    EXPECT_EQ(data[0], std::byte{42});
    region.reset();
    EXPECT_EQ(pool.committed_bytes(), 0u) << "they follow";
    EXPECT_EQ(data[0], std::byte{0});
  }
}

TEST_F(RegistrationCacheTest, ASlabIsRegisteredAgainOnlyAfterATrim) {
  for (int i = 0; i < 3; ++i) (void)cache.get(pool.allocate(500'000).value().data(), 500'000, kNoOwner).value();
  EXPECT_EQ(made(), 1);
  EXPECT_GT(pool.trim(), 0u);
  (void)cache.get(pool.allocate(500'000).value().data(), 500'000, kNoOwner).value();
  EXPECT_EQ(made(), 2);
}

TEST_F(RegistrationCacheTest, EachDeviceHasItsOwnRegistrationOfASlab) {
  const PoolBlock block = pool.allocate(5000).value();
  const std::unique_ptr<provider::Device> other = network.create_device("there");
  {
    RegistrationCache others{*other, pool, 10000};
    const RegionRef here = cache.get(block.data(), 5000, kNoOwner).value();
    const RegionRef there = others.get(block.data(), 5000, kNoOwner).value();
    EXPECT_NE(here, there);
    EXPECT_EQ(made(), 2);
  }
  (void)cache.get(block.data(), 5000, kNoOwner).value();
  EXPECT_EQ(made(), 2) << "the other cache has ended its own alone";
}

TEST_F(RegistrationCacheTest, ARefusedRegistrationIsAnError) {
  EXPECT_FALSE(cache.get(nullptr, 10, 1).ok());
  EXPECT_EQ(cache.pinned_bytes(), 0u);
}

}  // namespace
}  // namespace rrpc::endpoint
