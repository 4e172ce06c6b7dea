// Text that a peer chose, on its way to people: cut to a size, and one line. Bytes as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace rrpc {

// As much of UTF-8 as goes into so many bytes, no character in part.
inline std::string_view cut_text(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  const auto goes_on = [&] { return (static_cast<unsigned char>(text[bytes_max]) & 0xc0) == 0x80; };
  for (int i = 0; i < 3 && bytes_max > 0 && goes_on(); ++i) --bytes_max;
  return text.substr(0, bytes_max);
}

// With a question mark for each control character: no peer writes lines of its own into a log.
inline std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return line;
}

// The beginning, as an error message quotes it.
inline std::string quoted(std::string_view text) {
  constexpr size_t kBytesMax = 40;
  return "'" + one_line(cut_text(text, kBytesMax)) + "'";
}

// Two lower-case digits for each byte.
inline std::string hexadecimal(Bytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<uint8_t>(b) >> 4];
    text += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return text;
}

}  // namespace rrpc
