// What no decoder should begin to build is refused; everything else is left to it.
#include "base/msgpack_scan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash_probes.h"
#include "provider/sim/rng.h"

namespace rrpc {
namespace {

using provider::sim::Rng;

Result<MsgpackFacts> scan(const std::string& text) {
  // A copy of exactly the right size, so that a sanitizer sees a read past its end.
  const std::vector<std::byte> exact(as_bytes(text).begin(), as_bytes(text).end());
  return scan_msgpack(exact);
}
std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}
std::string count32(char head, uint32_t count) {
  std::string text(1, head);
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(count >> shift);
  return text;
}

TEST(MsgpackScan, CountsListsMapsAndExtensionsButNoMarks) {
  using std::string_literals::operator""s;
  EXPECT_EQ(scan("\x01").value().objects, 0U);
  EXPECT_EQ(scan("\x93\x90\x80\xa1x").value().objects, 3U);
  EXPECT_EQ(scan("\x92\xd4\x20\x07\xc7\x01\x21\x07"s).value().objects, 3U);
  EXPECT_EQ(scan("\x92\xc7\x00\x10\x07"s).value().objects, 1U);       // a tuple of one
  EXPECT_EQ(scan("\x92\x07\xc7\x00\x10"s).value().objects, 2U);       // a mark elsewhere is none
  EXPECT_EQ(scan("\x92\xd4\x13P\x81\xa1x\x01").value().objects, 2U);  // a record
}

TEST(MsgpackScan, SkipsEveryKindOfValue) {
  using std::string_literals::operator""s;
  const std::vector<std::string> values = {"\x07"s,
                                           "\xff"s,
                                           "\xc0"s,
                                           "\xc2"s,
                                           "\xc3"s,
                                           "\xa2hi"s,
                                           "\xd9\x02hi"s,
                                           "\xda\x00\x02hi"s,
                                           "\xdb\x00\x00\x00\x02hi"s,
                                           "\xc4\x02hi"s,
                                           "\xc5\x00\x02hi"s,
                                           "\xc6\x00\x00\x00\x02hi"s,
                                           "\xca"s + "abcd",
                                           "\xcb"s + "abcdefgh",
                                           "\xcc"s + "a",
                                           "\xcd"s + "ab",
                                           "\xce"s + "abcd",
                                           "\xcf"s + "abcdefgh",
                                           "\xd0"s + "a",
                                           "\xd1"s + "ab",
                                           "\xd2"s + "abcd",
                                           "\xd3"s + "abcdefgh"};
  for (const std::string& value : values) {
    // Had it been skipped wrongly, the lists behind it would be miscounted.
    EXPECT_EQ(scan("\x93" + value + "\x90\x90").value().objects, 3U) << value;
    for (size_t length = 0; length < value.size(); ++length) EXPECT_TRUE(scan(value.substr(0, length)).ok());
  }
  const std::vector<std::string> extensions = {"\xd4\x20"s + "a",
                                               "\xd5\x20"s + "ab",
                                               "\xd6\x20"s + "abcd",
                                               "\xd7\x20"s + "abcdefgh",
                                               "\xd8\x20"s + "abcdefghabcdefgh",
                                               "\xc7\x02\x20"s + "ab",
                                               "\xc8\x00\x02\x20"s + "ab",
                                               "\xc9\x00\x00\x00\x02\x20"s + "ab"};
  for (const std::string& value : extensions) EXPECT_EQ(scan("\x93" + value + "\x90\x90").value().objects, 4U);
}

TEST(MsgpackScan, RefusesDeepNesting) {
  EXPECT_TRUE(scan(repeated("\x91", kNestingMax - 1) + "\x90").ok());
  EXPECT_TRUE(scan(repeated("\x81\xa1x", kNestingMax - 1) + "\x80").ok());
  const auto too_deep = scan(repeated("\x91", kNestingMax) + "\x90");
  ASSERT_FALSE(too_deep.ok());
  EXPECT_NE(too_deep.status().message().find("nested deeper than"), std::string::npos);
  EXPECT_FALSE(scan(repeated("\x81\xa1x", kNestingMax) + "\x80").ok());
  // The map of a record is part of it.
  const std::string record = "\x92\xd4\x13P\x81\xa1x";
  EXPECT_TRUE(scan(repeated(record, kNestingMax) + "\x01").ok());
  EXPECT_FALSE(scan(repeated(record, kNestingMax + 1) + "\x01").ok());
}

TEST(MsgpackScan, RefusesMoreObjectsThanTheBytesAreWorth) {
  const auto empty_maps = [](uint32_t count) { return count32('\xdd', count) + repeated("\x80", count); };
  EXPECT_TRUE(scan(empty_maps(kObjectsAlways)).ok());
  const auto bomb = scan(empty_maps(4 * kObjectsAlways));
  ASSERT_FALSE(bomb.ok());
  EXPECT_NE(bomb.status().message().find("lists, dicts and other objects"), std::string::npos);
  // Short texts, pairs of numbers: what people send has more bytes.
  const std::string pair = std::string("\x92\xcb") + "abcdefgh" + "\xcb" + "abcdefgh";
  EXPECT_TRUE(scan(count32('\xdd', 2 * kObjectsAlways) + repeated(pair, 2 * kObjectsAlways)).ok());
}

TEST(MsgpackScan, RefusesCountsThatTheBytesCantHold) {
  EXPECT_FALSE(scan(count32('\xdd', 1 << 30) + "\x01").ok());
  EXPECT_FALSE(scan(count32('\xdf', 2) + "\x01\x02\x03").ok());
  EXPECT_TRUE(scan(count32('\xdf', 2) + "\x01\x02\x03\x04").ok());
}

TEST(MsgpackScan, RefusesMessagePacksTimestamps) {
  for (const char* timestamp : {"\xd6\xff", "\xd7\xff", "\xc7\x0c\xff"})
    EXPECT_FALSE(scan(timestamp + std::string(12, '\0')).ok());
}

TEST(MsgpackScan, TellsOfManyKeysThatAreNoText) {
  const auto map_of = [](const std::string& key, uint32_t count) {
    return count32('\xdf', count) + repeated(key + "\xc0", count);
  };
  EXPECT_FALSE(scan(map_of("\xa1x", 1000))->keys_to_check);
  EXPECT_FALSE(scan(map_of("\xc4\x01x", 1000))->keys_to_check);
  EXPECT_FALSE(scan(map_of("\x01", kKeysUnchecked))->keys_to_check);
  EXPECT_TRUE(scan(map_of("\x01", kKeysUnchecked + 1))->keys_to_check);
  EXPECT_TRUE(scan(map_of("\x91\x01", kKeysUnchecked + 1))->keys_to_check);
  // Values are no keys.
  EXPECT_FALSE(scan(count32('\xdf', 40) + repeated("\xa1x\x01", 40))->keys_to_check);
}

TEST(MsgpackScan, TakesAnyBytes) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text(static_cast<size_t>(rng.between(0, 64)), '\0');
    for (char& c : text) c = static_cast<char>(rng.next());
    static_cast<void>(scan(text));
  }
}

TEST(HashProbes, TakesTheHashesOfUsualKeys) {
  Rng rng(1);
  const auto collide = [](auto hash_of) {
    std::vector<int64_t> hashes;
    for (int64_t i = 0; i < 50000; ++i) hashes.push_back(hash_of(i));
    return hashes_collide(hashes);
  };
  EXPECT_FALSE(collide([](int64_t i) { return i; }));
  EXPECT_FALSE(collide([](int64_t i) { return -i; }));
  EXPECT_FALSE(collide([&rng](int64_t) { return static_cast<int64_t>(rng.next()); }));
  for (int shift = 1; shift < 45; ++shift) EXPECT_FALSE(collide([=](int64_t i) { return i << shift; })) << shift;
  EXPECT_FALSE(hashes_collide({}));
}

TEST(HashProbes, RefusesEqualHashes) { EXPECT_TRUE(hashes_collide(std::vector<int64_t>(1000, 7))); }

TEST(HashProbes, RefusesFamiliesOfEqualHashes) {
  std::vector<int64_t> hashes;
  for (int64_t i = 0; i < 2000; ++i) hashes.push_back(i % 10 * 1000003);
  EXPECT_TRUE(hashes_collide(hashes));
}

}  // namespace
}  // namespace rrpc
