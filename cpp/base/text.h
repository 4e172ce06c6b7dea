// Text that a peer chose, on its way to people: cut to a size, and one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

}  // namespace rrpc
