// Ranges that a peer reads in place: who has them, until when, and what a fork does to them.
#include <atomic>
#include <numeric>
#include <thread>

#include "provider/shm/control_segment.h"
#include "shm_peers.h"

namespace rrpc::provider::shm {
namespace {

constexpr size_t kRangeBytes = 3 * 4096 + 100;

// Both ends in one process and one thread.
class Lending : public ::testing::Test {
 protected:
  void SetUp() override {
    owner_.listen(path_);
    borrower_.qp = borrower_.device->open(*borrower_.cq, path_, {}, deadline_after(now_ns(), kSecond)).value();
    auto opened = std::move(borrower_.qp);
    owner_.qp = std::move(owner_.listener->accept(*owner_.cq, {})).value();
    auto made = std::move(owner_.qp);
    owner_.meanwhile = [this] { borrower_.step(); };
    borrower_.begin(std::move(opened));
    owner_.begin(std::move(made));
    ASSERT_TRUE(owner_.wait([this] { return owner_.connected() && borrower_.connected(); }));
    std::iota(reinterpret_cast<uint8_t*>(memory_.data()), reinterpret_cast<uint8_t*>(memory_.data()) + kBytes, 0);
    region_ = owner_.device->register_memory({memory_.data(), kBytes, memory_.fd(), false}).value();
  }
  void TearDown() override { unlink(path_.c_str()); }

  std::byte* place() { return memory_.data() + 4096 + 64; }
  uint32_t offer() {
    auto rkey = owner_.qp->expose(*region_, place(), kRangeBytes, kRemoteRead | kLend);
    EXPECT_TRUE(rkey.ok()) << rkey.status().to_string();
    return rkey.ok() ? *rkey : 0;
  }
  Result<std::unique_ptr<BorrowedRange>> borrow(uint32_t rkey) {
    return borrower_.qp->borrow(rkey, reinterpret_cast<uint64_t>(place()), kRangeBytes);
  }
  bool intact(const BorrowedRange& range) {
    return range.size() == kRangeBytes && std::memcmp(range.data(), place(), kRangeBytes) == 0;
  }

  static constexpr size_t kBytes = 64 << 10;
  const std::string path_ = test_path("lending");
  SharedMapping memory_ = SharedMapping::create("rrpc-test", kBytes, false).value();
  Node owner_;
  Node borrower_;
  std::unique_ptr<MemoryRegion> region_;
};

TEST_F(Lending, ARangeThatNobodyTookIsOverAtOnce) {
  const uint32_t rkey = offer();
  EXPECT_EQ(owner_.qp->end_lending(rkey), nullptr);
  EXPECT_EQ(borrow(rkey).status().code(), StatusCode::kPermissionDenied);
}

TEST_F(Lending, IsReadInPlaceUntilItIsGivenBack) {
  const uint32_t rkey = offer();
  auto range = borrow(rkey).value();
  EXPECT_TRUE(intact(*range));
  EXPECT_NE(range->data(), place()) << "a mapping of the borrower's own";
  const auto loan = owner_.qp->end_lending(rkey);
  ASSERT_NE(loan, nullptr);
  EXPECT_FALSE(loan->returned());
  EXPECT_EQ(owner_.qp->end_lending(rkey), nullptr) << "it has been ended";
  place()[5] = std::byte{99};
  EXPECT_EQ(range->data()[5], std::byte{99}) << "the same pages";
  range.reset();
  EXPECT_TRUE(loan->returned());
}

TEST_F(Lending, WhatIsGivenBackBeforeTheEndIsOverAtOnce) {
  const uint32_t rkey = offer();
  borrow(rkey).value().reset();
  EXPECT_EQ(owner_.qp->end_lending(rkey), nullptr);
}

TEST_F(Lending, IsTakenOnce) {
  const uint32_t rkey = offer();
  const auto range = borrow(rkey).value();
  EXPECT_EQ(borrow(rkey).status().code(), StatusCode::kPermissionDenied);
  const auto loan = owner_.qp->end_lending(rkey);
  ASSERT_NE(loan, nullptr);
  EXPECT_FALSE(loan->returned()) << "what was refused gave nothing back";
}

TEST_F(Lending, NothingOutsideTheRangeAndNothingThatIsNotLentIsBorrowed) {
  const uint32_t rkey = offer();
  const auto address = reinterpret_cast<uint64_t>(place());
  EXPECT_FALSE(borrower_.qp->borrow(rkey, address - 1, kRangeBytes).ok());
  EXPECT_FALSE(borrower_.qp->borrow(rkey, address, kRangeBytes + 1).ok());
  EXPECT_FALSE(borrower_.qp->borrow(rkey ^ 1, address, kRangeBytes).ok());
  const uint32_t only_read = owner_.qp->expose(*region_, place(), kRangeBytes, kRemoteRead).value();
  EXPECT_FALSE(borrow(only_read).ok());
  EXPECT_EQ(owner_.qp->end_lending(only_read), nullptr);
  auto writable = owner_.qp->expose(*region_, place(), kRangeBytes, kRemoteRead | kRemoteWrite | kLend);
  EXPECT_EQ(writable.status().code(), StatusCode::kFailedPrecondition);
  std::vector<std::byte> ordinary(kRangeBytes);
  auto own = owner_.device->register_memory({ordinary.data(), ordinary.size()}).value();
  auto lent = owner_.qp->expose(*own, ordinary.data(), kRangeBytes, kRemoteRead | kLend);
  EXPECT_EQ(lent.status().code(), StatusCode::kFailedPrecondition) << "no pages that another process can map";
}

TEST_F(Lending, ALentRangeIsReadToo) {
  const uint32_t rkey = offer();
  std::vector<std::byte> target(kRangeBytes);
  auto region = borrower_.device->register_memory({target.data(), target.size()}).value();
  borrower_.meanwhile = [this] { owner_.meanwhile = [] {}, owner_.step(); };
  EXPECT_EQ(borrower_.transfer(Opcode::kRead, {target.data(), kRangeBytes, region.get()},
                               reinterpret_cast<uint64_t>(place()), rkey),
            WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(target.data(), place(), kRangeBytes), 0);
}

// Neither end's connection is needed to read on, or to give it back.
TEST_F(Lending, OutlivesTheConnection) {
  const uint32_t rkey = offer();
  auto range = borrow(rkey).value();
  owner_.qp->disconnect("over");
  const auto loan = owner_.qp->end_lending(rkey);
  ASSERT_NE(loan, nullptr);
  owner_.qp.reset();
  borrower_.qp.reset();
  EXPECT_TRUE(intact(*range));
  EXPECT_FALSE(loan->returned());
  EXPECT_FALSE(loan->abandoned());
  range.reset();
  EXPECT_TRUE(loan->returned());
}

// A key of the table that a peer keeps stands for no other range.
TEST_F(Lending, WhatIsKeptHasItsEntryAlone) {
  const uint32_t kept_key = offer();
  auto range = borrow(kept_key).value();
  const auto loan = owner_.qp->end_lending(kept_key);
  for (int i = 0; i < 5000; ++i) {
    const uint32_t rkey = offer();
    ASSERT_NE(rkey & (kExposureCount - 1), kept_key & (kExposureCount - 1));
    ASSERT_EQ(owner_.qp->end_lending(rkey), nullptr);
  }
  EXPECT_FALSE(loan->returned());
  range.reset();
  EXPECT_TRUE(loan->returned());
  bool reused = false;
  for (int i = 0; i < 5000 && !reused; ++i) {
    const uint32_t rkey = offer();
    reused = (rkey & (kExposureCount - 1)) == (kept_key & (kExposureCount - 1));
    (void)owner_.qp->end_lending(rkey);
  }
  EXPECT_TRUE(reused);
  EXPECT_TRUE(loan->returned());
}

// Two threads, as two processes have them: one of take and withdraw comes first.
TEST_F(Lending, IsEitherTakenOrWithdrawn) {
  int taken = 0, withdrawn = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t rkey = offer();
    std::atomic<int> ready{0};
    const auto meet = [&ready] {
      ++ready;
      while (ready < 2) cpu_relax();
    };
    Result<std::unique_ptr<BorrowedRange>> range = unavailable("not tried");
    std::thread other([&] {
      meet();
      range = borrow(rkey);
    });
    meet();
    const auto loan = owner_.qp->end_lending(rkey);
    other.join();
    ASSERT_EQ(range.ok(), loan != nullptr);
    ++(range.ok() ? taken : withdrawn);
    range = unavailable("given back");
    ASSERT_TRUE(loan == nullptr || loan->returned());
  }
  EXPECT_EQ(taken + withdrawn, 2000);
}

// The child has the bytes as they were, and gives nothing back that its parent reads.
TEST_F(Lending, AForkedChildHasACopy) {
  const uint32_t rkey = offer();
  auto range = borrow(rkey).value();
  const auto loan = owner_.qp->end_lending(rkey);
  const std::vector<std::byte> before(range->data(), range->data() + kRangeBytes);
  std::array<int, 2> go{};
  ASSERT_EQ(pipe(go.data()), 0);
  ChildProcess child([&] {
    char byte = 0;
    EXPECT_EQ(read(go[0], &byte, 1), 1);
    EXPECT_EQ(std::memcmp(range->data(), before.data(), kRangeBytes), 0);
    range.reset();
  });
  std::memset(place(), 0xee, kRangeBytes);
  ASSERT_EQ(write(go[1], "x", 1), 1);
  EXPECT_EQ(child.exit_code(), 0);
  EXPECT_FALSE(loan->returned());
  EXPECT_EQ(range->data()[7], std::byte{0xee}) << "the parent's is the owner's still";
  range.reset();
  EXPECT_TRUE(loan->returned());
  close(go[0]), close(go[1]);
}

TEST(LendingToAnotherProcess, IsOverWhenThatHasEnded) {
  const std::string path = test_path("borrower");
  Node owner;
  owner.listen(path);
  ChildProcess peer([&] {
    Node node;
    node.connect(path);
    const Ticket ticket = Ticket::from(node.next_message());
    const auto range = node.qp->borrow(ticket.rkey, ticket.address, ticket.length_bytes);
    EXPECT_TRUE(range.ok()) << range.status().to_string();
    EXPECT_TRUE(node.send("taken").ok());
    (void)node.wait([] { return false; });
  });
  owner.accept_one();
  SharedMapping memory = SharedMapping::create("rrpc-test", 8192, false).value();
  const auto region = owner.device->register_memory({memory.data(), 8192, memory.fd(), false}).value();
  const uint32_t rkey = owner.qp->expose(*region, memory.data(), 8192, kRemoteRead | kLend).value();
  ASSERT_TRUE(owner.send(Ticket{reinterpret_cast<uint64_t>(memory.data()), 8192, rkey}.text()).ok());
  EXPECT_EQ(owner.next_message(), "taken");
  const auto loan = owner.qp->end_lending(rkey);
  ASSERT_NE(loan, nullptr);
  EXPECT_FALSE(loan->abandoned());
  owner.qp.reset();
  EXPECT_FALSE(loan->abandoned()) << "the process lives, and may read on";
  peer.kill_now();
  EXPECT_TRUE(loan->abandoned());
  EXPECT_FALSE(loan->returned());
  unlink(path.c_str());
}

}  // namespace
}  // namespace rrpc::provider::shm
