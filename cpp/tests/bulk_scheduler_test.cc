#include "endpoint/bulk_scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "provider/sim/rng.h"

namespace rrpc::endpoint {
namespace {

using provider::Opcode;
using provider::WcStatus;
using provider::sim::Rng;

constexpr uint64_t kTag = 7ULL << 56;

// Takes READs and WRITEs, and completes what the test says.
class FakeQueuePair : public provider::QueuePair {
 public:
  FakeQueuePair() : QueuePair(1) {}
  struct Posted {
    uint32_t slot;
    Opcode opcode;
    std::byte* local;
    uint32_t length_bytes;
    uint64_t remote_address;
    uint32_t rkey;
    std::vector<uint32_t> sge_bytes;
  };
  Status post_send(std::span<const provider::WorkRequest> requests) override {
    if (!refusal.ok()) return refusal;
    for (const auto& request : requests) {
      EXPECT_EQ(request.wr_id & kTag, kTag);
      Posted& made = posted.emplace_back(Posted{static_cast<uint32_t>(request.wr_id),
                                                request.opcode,
                                                request.sges[0].address,
                                                0,
                                                request.remote_address,
                                                request.rkey,
                                                {}});
      for (const provider::Sge& sge : request.sges) {
        made.length_bytes += sge.length_bytes;
        made.sge_bytes.push_back(sge.length_bytes);
      }
    }
    return {};
  }
  provider::QueuePairState state() const override { return state_; }
  const Status& error() const override { return refusal; }
  const provider::QueuePairLimits& limits() const override { return limits_; }
  Status start(Bytes) override { return {}; }
  Bytes peer_private_data() const override { return std::as_bytes(std::span(&offer_, 1)); }
  std::string peer_description() const override { return "fake"; }
  std::string local_description() const override { return "fake"; }
  std::string_view bulk_method() const override { return "none"; }
  Status post_receive(const provider::ReceiveRequest&) override { return {}; }
  Result<uint32_t> expose(const provider::MemoryRegion&, const std::byte*, size_t, uint32_t) override { return 1u; }
  bool revoke(uint32_t) override { return true; }
  void disconnect(const std::string&) override { state_ = provider::QueuePairState::kError; }

  std::vector<Posted> posted;
  Status refusal;

  provider::QueuePairLimits limits_{
      .sge_count_max = 3, .read_sge_count_max = 3, .read_depth = 16, .message_bytes_max = 1 << 20};
  provider::QueuePairState state_ = provider::QueuePairState::kConnected;
  RailOffer offer_;
};

struct BulkSchedulerTest : testing::Test {
  void start(BulkScheduler& bulk, uint64_t cookie, const std::vector<size_t>& lengths, Opcode opcode = Opcode::kRead) {
    std::vector<TransferSegment> segments;
    uint64_t at = cookie << 32;
    for (const size_t length : lengths) {
      segments.push_back(
          // NOLINTNEXTLINE(performance-no-int-to-ptr): never touched, only told apart
          {reinterpret_cast<std::byte*>(at), nullptr, at + (1ULL << 60), static_cast<uint32_t>(cookie), length});
      at += 1 << 24;
    }
    bulk.start(cookie, opcode, std::move(segments));
  }
  void pump(BulkScheduler& bulk) { ASSERT_TRUE(bulk.pump(qp, kTag).ok()); }
  void complete_first(BulkScheduler& bulk, WcStatus status = WcStatus::kSuccess) {
    const uint32_t slot = qp.posted[completed++].slot;
    bulk.on_completion(slot, status);
  }
  FakeQueuePair qp;
  size_t completed = 0;
};

TEST_F(BulkSchedulerTest, CutsIntoChunksInsideTheWindow) {
  BulkScheduler bulk(3, 1000);
  start(bulk, 5, {2500, 0, 1000, 1});
  pump(bulk);
  EXPECT_EQ(qp.posted.size(), 3u);
  while (completed < qp.posted.size()) {
    complete_first(bulk);
    pump(bulk);
    EXPECT_LE(qp.posted.size() - completed, 3u);
  }
  std::vector<uint32_t> lengths;
  for (const auto& posted : qp.posted) {
    lengths.push_back(posted.length_bytes);
    EXPECT_EQ(reinterpret_cast<uint64_t>(posted.local) + (1ULL << 60), posted.remote_address);
    EXPECT_EQ(posted.rkey, 5u);
  }
  EXPECT_EQ(lengths, (std::vector<uint32_t>{1000, 1000, 500, 1000, 1}));
  const auto finished = bulk.take_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].cookie, 5u);
  EXPECT_EQ(finished[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(bulk.idle());
  EXPECT_EQ(finished[0].length_bytes, 3501u);
}

// Segments (length, gap before it in the peer's memory) of one key, as the work requests they become.
std::vector<std::vector<uint32_t>> gathered(FakeQueuePair& qp, Opcode opcode,
                                            const std::vector<std::pair<size_t, uint64_t>>& given) {
  BulkScheduler bulk(100, 1000);
  std::vector<TransferSegment> segments;
  uint64_t remote = 1 << 20;
  for (const auto& [length, gap] : given) {
    remote += gap;
    segments.push_back({nullptr, nullptr, remote, 7, length});
    remote += length;
  }
  bulk.start(1, opcode, std::move(segments));
  qp.posted.clear();
  EXPECT_TRUE(bulk.pump(qp, kTag).ok());
  std::vector<std::vector<uint32_t>> lists;
  for (const auto& posted : qp.posted) {
    lists.push_back(posted.sge_bytes);
    bulk.on_completion(posted.slot, WcStatus::kSuccess);
  }
  EXPECT_EQ(bulk.take_finished().size(), 1u);
  return lists;
}

TEST_F(BulkSchedulerTest, WritesOfAdjacentSegmentsShareAWorkRequest) {
  using Lists = std::vector<std::vector<uint32_t>>;
  EXPECT_EQ(gathered(qp, Opcode::kWrite, {{10, 0}, {20, 0}, {30, 0}, {40, 0}}), (Lists{{10, 20, 30}, {40}}))
      << "three elements at most";
  EXPECT_EQ(gathered(qp, Opcode::kWrite, {{10, 0}, {20, 1}, {30, 0}}), (Lists{{10}, {20, 30}})) << "not over a gap";
  EXPECT_EQ(gathered(qp, Opcode::kWrite, {{600, 0}, {600, 0}, {10, 0}}), (Lists{{600, 400}, {200, 10}}))
      << "no longer than a chunk";
  EXPECT_EQ(gathered(qp, Opcode::kWrite, {{2500, 0}, {1, 0}}), (Lists{{1000}, {1000}, {500, 1}}));
  EXPECT_EQ(qp.posted.back().remote_address, (1u << 20) + 2000);
  EXPECT_EQ(gathered(qp, Opcode::kRead, {{10, 0}, {20, 0}}), (Lists{{10}, {20}}));
}

TEST_F(BulkSchedulerTest, NothingToMoveIsFinishedAtOnce) {
  BulkScheduler bulk(1, 1000);
  start(bulk, 1, {0, 0});
  start(bulk, 2, {});
  EXPECT_EQ(bulk.take_finished().size(), 2u);
  EXPECT_FALSE(bulk.has_finished());
  EXPECT_TRUE(bulk.idle());
}

TEST_F(BulkSchedulerTest, TransfersTakeTurns) {
  BulkScheduler bulk(2, 1000);
  start(bulk, 1, {100000});
  start(bulk, 2, {100000}, Opcode::kWrite);
  start(bulk, 3, {500});
  pump(bulk);
  for (int i = 0; i < 4; ++i) {
    complete_first(bulk);
    pump(bulk);
  }
  std::vector<uint32_t> order;
  for (const auto& posted : qp.posted) order.push_back(posted.rkey);
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 2, 3, 1, 2, 1}));
  EXPECT_EQ(qp.posted[1].opcode, Opcode::kWrite);
  const auto finished = bulk.take_finished();
  ASSERT_EQ(finished.size(), 1u) << "the short one does not wait for the long ones";
  EXPECT_EQ(finished[0].cookie, 3u);
}

TEST_F(BulkSchedulerTest, ACancelledTransferEndsWhenItsLastReadHas) {
  for (uint32_t done_before = 0; done_before < 5; ++done_before) {
    BulkScheduler bulk(2, 1000);
    qp.posted.clear();
    completed = 0;
    start(bulk, 1, {5000});
    pump(bulk);
    for (uint32_t i = 0; i < done_before; ++i) {
      complete_first(bulk);
      pump(bulk);
    }
    const size_t posted = qp.posted.size();
    bulk.cancel(1);
    bulk.cancel(1);
    pump(bulk);
    EXPECT_EQ(qp.posted.size(), posted) << "no more is posted";
    while (completed < posted) {
      EXPECT_FALSE(bulk.has_finished()) << "its memory is still the device's";
      complete_first(bulk);
    }
    const auto finished = bulk.take_finished();
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].status, WcStatus::kFlushed);
    EXPECT_TRUE(bulk.idle());
  }
}

TEST_F(BulkSchedulerTest, ACancelBeforeTheFirstPostEndsAtOnceAndOneAfterTheEndDoesNothing) {
  BulkScheduler bulk(1, 1000);
  start(bulk, 1, {5000});
  bulk.cancel(1);
  EXPECT_EQ(bulk.take_finished().size(), 1u);
  bulk.cancel(1);
  EXPECT_FALSE(bulk.has_finished());
}

TEST_F(BulkSchedulerTest, TheFirstFailureIsTheTransfersAndOthersGoOn) {
  BulkScheduler bulk(4, 1000);
  start(bulk, 1, {10000});
  start(bulk, 2, {1000});
  pump(bulk);  // 1 2 1 1
  complete_first(bulk, WcStatus::kRemoteAccess);
  EXPECT_FALSE(bulk.has_finished());
  complete_first(bulk);
  complete_first(bulk, WcStatus::kFlushed);
  complete_first(bulk);
  pump(bulk);
  EXPECT_EQ(qp.posted.size(), 4u);
  std::map<uint64_t, WcStatus> ended;
  for (const auto& finished : bulk.take_finished()) ended[finished.cookie] = finished.status;
  EXPECT_EQ(ended.at(1), WcStatus::kRemoteAccess);
  EXPECT_EQ(ended.at(2), WcStatus::kSuccess);
}

TEST_F(BulkSchedulerTest, AFullSendQueueIsTriedAgainAndADeadOneReported) {
  BulkScheduler bulk(2, 1000);
  start(bulk, 1, {2000});
  qp.refusal = resource_exhausted("full");
  pump(bulk);
  EXPECT_TRUE(qp.posted.empty());
  qp.refusal = unavailable("dead");
  EXPECT_FALSE(bulk.pump(qp, kTag).ok());
  qp.refusal = {};
  pump(bulk);
  EXPECT_EQ(qp.posted.size(), 2u);
}

TEST_F(BulkSchedulerTest, EveryTransferEndsOnceWhateverHappens) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    BulkScheduler bulk(static_cast<uint32_t>(rng.between(1, 8)), static_cast<size_t>(rng.between(1, 3000)));
    qp.posted.clear();
    std::map<uint64_t, int> ended;
    uint64_t started = 0;
    std::vector<FakeQueuePair::Posted> in_flight;
    const auto take = [&] {
      for (auto& posted : qp.posted) in_flight.push_back(posted);
      qp.posted.clear();
      for (const auto& finished : bulk.take_finished()) {
        ++ended[finished.cookie];
        for (const auto& posted : in_flight) ASSERT_NE(posted.rkey, finished.cookie) << "seed " << seed;
      }
    };
    for (int step = 0; step < 200 || !bulk.idle(); ++step) {
      const int64_t what = rng.between(0, step < 200 ? 4 : 1);
      if (what == 4) start(bulk, ++started, {static_cast<size_t>(rng.between(0, 20000)), 100});
      if (what == 3 && started > 0) bulk.cancel(static_cast<uint64_t>(rng.between(1, static_cast<int64_t>(started))));
      if (what == 0 && !in_flight.empty()) {
        const auto index = rng.between(0, static_cast<int64_t>(in_flight.size()) - 1);
        const uint32_t slot = in_flight[static_cast<size_t>(index)].slot;
        in_flight.erase(in_flight.begin() + index);
        bulk.on_completion(slot, rng.chance(0.05) ? WcStatus::kFlushed : WcStatus::kSuccess);
      } else {
        pump(bulk);
      }
      take();
    }
    EXPECT_EQ(ended.size(), started) << "seed " << seed;
    for (const auto& [cookie, times] : ended) EXPECT_EQ(times, 1) << "seed " << seed;
  }
}

// One sealed transfer of two segments, in memory that is really there.
struct SealedTransfer : BulkSchedulerTest {
  SealedTransfer() : memory(kFirst + kSecond, std::byte{5}) {
    std::vector<TransferSegment> segments;
    std::byte* local = memory.data();
    for (const size_t length : {kFirst, kSecond}) {
      auto seal = std::make_shared<Seal>();
      seal->tags.resize(seal_piece_count(length, seal->pieces_max));
      segments.push_back({local, nullptr, 0, 1, length, std::move(seal)});
      local += length;
    }
    bulk.start(1, Opcode::kRead, std::move(segments));
    EXPECT_TRUE(bulk.pump(qp, kTag).ok());
  }
  void land(size_t posted) { bulk.on_completion(qp.posted[posted].slot, WcStatus::kSuccess); }
  std::vector<FinishedTransfer> finished() { return bulk.take_finished(); }

  static constexpr size_t kFirst = 5 << 20;
  static constexpr size_t kSecond = 1000;
  BulkScheduler bulk{16, 1 << 20};
  FakeQueuePair qp;
  std::vector<std::byte> memory;
};

TEST_F(SealedTransfer, ItFinishesOnceAllOfItWasChecked) {
  ASSERT_EQ(qp.posted.size(), 6u);
  land(0);
  EXPECT_FALSE(bulk.has_landed()) << "too little to begin with";
  land(1);
  ASSERT_TRUE(bulk.has_landed());
  EXPECT_EQ(bulk.first_landed().piece_index, 0u);
  EXPECT_EQ(bulk.first_landed().piece_count, (2 << 20) / kSealPieceBytes);
  bulk.first_landed_was_checked(bulk.first_landed().piece_count);
  EXPECT_FALSE(bulk.has_landed());
  for (size_t i = 2; i < 6; ++i) land(i);
  size_t pieces = 0;
  while (bulk.has_landed()) {
    EXPECT_TRUE(finished().empty());
    pieces += bulk.first_landed().piece_count;
    bulk.first_landed_was_checked(bulk.first_landed().piece_count);
  }
  EXPECT_EQ(pieces, (3 << 20) / kSealPieceBytes + 1) << "and those of the second segment";
  const auto ended = finished();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(bulk.idle());
}

TEST_F(SealedTransfer, WhatIsRefusedIsGoneWhenItsLastReadHasEnded) {
  land(0);
  land(1);
  bulk.refuse_first_landed();
  EXPECT_FALSE(bulk.has_landed());
  EXPECT_EQ(memory, std::vector<std::byte>(memory.size(), std::byte{0}));
  EXPECT_TRUE(finished().empty()) << "the device still has its memory";
  memory[kFirst - 1] = std::byte{5};
  for (size_t i = 2; i < 6; ++i) land(i);
  const auto ended = finished();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status, WcStatus::kFlushed);
  EXPECT_EQ(memory, std::vector<std::byte>(memory.size(), std::byte{0}));
}

TEST_F(SealedTransfer, OneThatIsCancelledIsNotChecked) {
  for (size_t i = 0; i < 6; ++i) land(i);
  EXPECT_TRUE(bulk.has_landed());
  bulk.cancel(1);
  EXPECT_FALSE(bulk.has_landed());
  const auto ended = finished();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status, WcStatus::kFlushed);
}

struct FakeRegion : provider::MemoryRegion {
  FakeRegion() : MemoryRegion({}, 0) {}
};

// Of two lanes, one a rail: what is posted to each, by hand.
struct RailedSchedulerTest : BulkSchedulerTest {
  RailedSchedulerTest() {
    auto made = std::make_unique<FakeQueuePair>();
    rail = made.get();
    joined.reserve();
    RailQueues queues{nullptr, std::move(made)};
    EXPECT_TRUE(rails.add(0, queues, {}, kNever).ok());
    bulk.use_rails(rails);
  }
  void start_striped(size_t length_bytes) {
    bulk.start(1, Opcode::kRead,
               {{nullptr, std::make_shared<FakeRegion>(), 1 << 20, 7, length_bytes, nullptr, {9, 0, 0}}});
    pump(bulk);
  }
  JoinedQueue joined;
  Rails rails{joined, qp};
  FakeQueuePair* rail = nullptr;
  BulkScheduler bulk{2, 1000};
};

TEST_F(RailedSchedulerTest, EachLaneHasAWindowOfItsOwn) {
  start_striped(10000);
  EXPECT_EQ(qp.posted.size(), 2u);
  ASSERT_EQ(rail->posted.size(), 2u);
  EXPECT_EQ(rail->posted[0].rkey, 9u);
  bulk.on_completion(rail->posted[0].slot, WcStatus::kSuccess);
  pump(bulk);
  EXPECT_EQ(qp.posted.size(), 2u);
  EXPECT_EQ(rail->posted.size(), 3u) << "the faster one gets more";
  start(bulk, 2, {5000});
  pump(bulk);
  EXPECT_EQ(qp.posted.size() + rail->posted.size(), 5u) << "one that no rail takes waits for the own";
}

TEST_F(RailedSchedulerTest, ARailByWhichNothingComesIsGivenUpBeforeTheTransfer) {
  start_striped(2000);
  ASSERT_EQ(rail->posted.size(), 1u);
  complete_first(bulk);
  EXPECT_FALSE(bulk.stalled(0, kSecond));
  EXPECT_FALSE(bulk.stalled(kSecond / 4, kSecond));
  EXPECT_EQ(rail->state(), provider::QueuePairState::kConnected);
  EXPECT_FALSE(bulk.stalled(kSecond / 2, kSecond));
  ASSERT_EQ(rail->state(), provider::QueuePairState::kError);
  bulk.on_completion(rail->posted[0].slot, WcStatus::kFlushed);
  EXPECT_FALSE(bulk.has_finished());
  EXPECT_FALSE(bulk.stalled(kSecond, kSecond)) << "it has its time anew";
  pump(bulk);
  ASSERT_EQ(qp.posted.size(), 2u);
  EXPECT_EQ(qp.posted[1].remote_address, rail->posted[0].remote_address);
  EXPECT_EQ(qp.posted[1].rkey, 7u);
  complete_first(bulk);
  const auto finished = bulk.take_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].status, WcStatus::kSuccess);
  EXPECT_EQ(finished[0].bytes_by_rails, 0u);
}

TEST_F(RailedSchedulerTest, ARailThatTakesNoMoreLeavesTheRestToTheOwn) {
  rail->refusal = resource_exhausted("full");
  start_striped(3000);
  EXPECT_EQ(qp.posted.size(), 2u);
  rail->refusal = {};
  complete_first(bulk);
  pump(bulk);
  EXPECT_EQ(qp.posted.size(), 3u);
  EXPECT_TRUE(rail->posted.empty());
}

}  // namespace
}  // namespace rrpc::endpoint
