#include "base/text.h"

#include <gtest/gtest.h>

namespace rrpc {
namespace {

TEST(Text, IsCutBetweenCharacters) {
  const std::string text = "a\u00e9\u20ac\U0001f600";  // of 1, 2, 3 and 4 bytes
  const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t most = 0; most < std::size(whole); ++most)
    EXPECT_EQ(cut_text(text, most), text.substr(0, whole[most])) << most;
}

TEST(Text, WhatIsNoUtf8IsCutAnyhow) {
  EXPECT_EQ(cut_text(std::string(10, '\x80'), 5), std::string(2, '\x80'));
  EXPECT_EQ(cut_text("", 0), "");
}

TEST(Text, ControlCharactersMakeNoLines) {
  EXPECT_EQ(one_line("a\nb\x1b[31m\x7f caf\u00e9 \xff"), "a?b?[31m? caf\u00e9 \xff");
}

}  // namespace
}  // namespace rrpc
