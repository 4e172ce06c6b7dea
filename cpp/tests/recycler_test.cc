#include "base/recycler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <vector>

namespace rrpc {
namespace {

struct Piece {
  std::array<int, 50> numbers{};
};

std::shared_ptr<Piece> make_piece(Recycler& recycler) {
  return std::allocate_shared<Piece>(RecyclingAllocator<Piece>(recycler));
}

TEST(Recycler, UsesMemoryAgain) {
  const Recycler::Owner recycler = Recycler::make();
  const void* const first = make_piece(*recycler).get();
  EXPECT_EQ(make_piece(*recycler).get() == first, Recycler::kKept > 0);
}

TEST(Recycler, KeepsNoMoreThanItsLimit) {
  const Recycler::Owner recycler = Recycler::make();
  std::vector<void*> pieces;
  for (size_t i = 0; i < 2 * Recycler::kKept + 1; ++i) pieces.push_back(recycler->take(100));
  for (void* piece : pieces) recycler->give_back(piece, 100);
  for (void*& piece : pieces) piece = recycler->take(100);
  for (void* piece : pieces) recycler->give_back(piece, 100);
}

TEST(Recycler, ServesOtherSizesToo) {
  const Recycler::Owner recycler = Recycler::make();
  recycler->give_back(recycler->take(100), 100);
  void* const larger = recycler->take(1000);
  std::fill_n(static_cast<char*>(larger), 1000, 'x');
  recycler->give_back(larger, 1000);
}

// AddressSanitizer sees if the recycler goes too early, LeakSanitizer if it never goes.
TEST(Recycler, LivesAsLongAsItsPieces) {
  Recycler::Owner recycler = Recycler::make();
  std::vector<std::shared_ptr<Piece>> pieces;
  for (int i = 0; i < 10; ++i) pieces.push_back(make_piece(*recycler));
  recycler.reset();
  for (const auto& piece : pieces) EXPECT_EQ(piece->numbers[49], 0);
  std::thread other([&pieces] { pieces.resize(5); });
  other.join();
  pieces.clear();
}

TEST(Recycler, ServesThreadsAtOnce) {
  Recycler::Owner recycler = Recycler::make();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recycler, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto piece = make_piece(*recycler);
        piece->numbers.fill(t);
        const auto other = make_piece(*recycler);
        other->numbers.fill(t + 10);
        EXPECT_EQ(piece->numbers[7], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rrpc
