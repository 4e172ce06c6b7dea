// Containers with room of their own, beside the standard library's that they stand in for.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/growing_bytes.h"
#include "base/short_vector.h"
#include "base/text.h"

namespace rrpc {
namespace {

constexpr size_t kWithin = 16;

// Every length around the room and the heap's doublings, in pieces of every size.
TEST(GrowingBytes, HoldWhatWasAddedToThem) {
  for (size_t piece = 1; piece <= 2 * kWithin + 1; ++piece) {
    GrowingBytes<kWithin> bytes;
    std::string expected;
    for (size_t total = 0; total < 6 * kWithin; total += piece) {
      const std::string text(piece, static_cast<char>('a' + total % 26));
      bytes.append(as_bytes(text));
      expected += text;
      ASSERT_EQ(as_text(bytes.view()), expected);
    }
    bytes.append({});
    bytes.prepend(std::byte{'!'});
    EXPECT_EQ(as_text(bytes.view()), "!" + expected);
    bytes.shrink(piece);
    EXPECT_EQ(as_text(bytes.view()), ("!" + expected).substr(0, piece));
    bytes.shrink(piece + 1);
    EXPECT_EQ(bytes.size(), piece) << "it doesn't grow by that";
  }
}

TEST(GrowingBytes, KeepTheHeapsMemoryUpToABound) {
  GrowingBytes<kWithin> bytes;
  const std::string text(4 * kWithin, 'x');
  bytes.append(as_bytes(text));
  const std::byte* const on_heap = bytes.view().data();
  bytes.clear(4 * kWithin);
  EXPECT_EQ(bytes.size(), 0u);
  EXPECT_EQ(bytes.view().data(), on_heap);
  bytes.clear(4 * kWithin - 1);
  EXPECT_NE(bytes.view().data(), on_heap);
  bytes.append(as_bytes(text));
  EXPECT_EQ(as_text(bytes.view()), text);
}

bool lies_within(const auto& vector) {
  const auto* const at = reinterpret_cast<const std::byte*>(vector.data());
  const auto* const object = reinterpret_cast<const std::byte*>(&vector);
  return at >= object && at < object + sizeof(vector);
}

TEST(ShortVector, LeavesItsOwnRoomWhenItGrowsAndComesBack) {
  ShortVector<std::shared_ptr<int>, 4> vector;
  const auto counted = std::make_shared<int>(7);
  for (int round = 0; round < 2; ++round) {
    for (long count = 1; count <= 9; ++count) {
      vector.push_back(counted);
      EXPECT_EQ(counted.use_count(), count + 1);
      EXPECT_EQ(lies_within(vector), count <= 4) << count;
    }
    vector.clear();
    vector.shrink_to_fit();
    vector.reserve(4);
    EXPECT_TRUE(lies_within(vector)) << "the room is free again";
    EXPECT_EQ(counted.use_count(), 1);
  }
}

// A second vector of the same allocator finds the room taken.
TEST(ShortVector, GivesItsRoomToOneVectorAtATime) {
  ShortVector<int, 4> first;
  first.assign(4, 1);
  std::vector<int, ShortVectorAllocator<int, 4>> second(first.begin(), first.end(), first.get_allocator());
  EXPECT_FALSE(lies_within(second));
  second[0] = 2;
  EXPECT_EQ(first[0], 1);
}

}  // namespace
}  // namespace rrpc
