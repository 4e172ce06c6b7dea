// Parses MessagePack and tells a visitor of each value, in the order of the bytes. It knows where a value's bytes
// begin and end, so that a visitor can take a value whole, with all that is in it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/short_vector.h"

namespace rrpc::bind::plan {

// The next value's own bytes: of a list and a map without what they hold.
struct Head {
  enum class Type : uint8_t { kNil, kBool, kUnsigned, kSigned, kFloat, kStr, kBin, kExt, kList, kMap };
  Type type = Type::kNil;
  int8_t code = 0;      // of an extension
  uint64_t number = 0;  // a bool, an int (a signed one in two's complement), the bits of a float, a count of items
  std::string_view data;
};

// Reads heads one after the other. Never beyond the end, whatever the bytes are.
class Heads {
 public:
  explicit Heads(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool at_end() const { return at_ == end_; }
  uint8_t first() const { return static_cast<uint8_t>(*at_); }

  // False: cut short, or no MessagePack.
  [[gnu::always_inline]] inline bool next(Head& head) {
    if (at_end()) return false;
    const auto first = static_cast<uint8_t>(*at_++);
    if (first <= 0x7f) return whole(head, Head::Type::kUnsigned, first);
    if (first >= 0xe0) return whole(head, Head::Type::kSigned, static_cast<uint64_t>(static_cast<int8_t>(first)));
    if (first <= 0x8f) return whole(head, Head::Type::kMap, first & 0x0f);
    if (first <= 0x9f) return whole(head, Head::Type::kList, first & 0x0f);
    if (first <= 0xbf) return data(head, Head::Type::kStr, first & 0x1f);
    return next_long(first, head);
  }

  // The bytes of the next value with all that is in it, which it passes over; empty if they are cut short. Takes time
  // in proportion to the bytes, whatever counts they claim.
  std::string_view next_value() {
    const char* const begin = at_;
    Head head;
    for (uint64_t left = 1; left != 0; --left) {
      if (!next(head)) return {};
      if (head.type == Head::Type::kList) left += head.number;
      if (head.type == Head::Type::kMap) left += 2 * head.number;
    }
    return {begin, static_cast<size_t>(at_ - begin)};
  }

 private:
  static bool whole(Head& head, Head::Type type, uint64_t number) {
    head.type = type;
    head.number = number;
    return true;
  }

  bool data(Head& head, Head::Type type, uint64_t length) {
    if (length > static_cast<size_t>(end_ - at_)) return false;
    head.type = type;
    head.data = {at_, static_cast<size_t>(length)};
    at_ += length;
    return true;
  }

  // Big-endian, as MessagePack is.
  template <typename Number>
  bool number(Head& head, Head::Type type) {
    Number value = 0;
    if (static_cast<size_t>(end_ - at_) < sizeof value) return false;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    if constexpr (sizeof value == 2) value = static_cast<Number>(__builtin_bswap16(static_cast<uint16_t>(value)));
    if constexpr (sizeof value == 4) value = static_cast<Number>(__builtin_bswap32(static_cast<uint32_t>(value)));
    if constexpr (sizeof value == 8) value = static_cast<Number>(__builtin_bswap64(static_cast<uint64_t>(value)));
    head.type = type;
    // A signed one with its sign.
    head.number = static_cast<uint64_t>(value);  // NOLINT(bugprone-signed-char-misuse)
    return true;
  }

  template <typename Number>
  bool sized(Head& head, Head::Type type) {
    return number<Number>(head, type) && data(head, type, head.number);
  }

  template <typename Number>
  bool sized_extension(Head& head) {
    return number<Number>(head, Head::Type::kExt) && extension(head, head.number);
  }

  bool extension(Head& head, uint64_t length) {
    if (at_end()) return false;
    head.code = static_cast<int8_t>(*at_++);
    return data(head, Head::Type::kExt, length);
  }

  bool float32(Head& head) {
    if (!number<uint32_t>(head, Head::Type::kFloat)) return false;
    head.number = std::bit_cast<uint64_t>(double{std::bit_cast<float>(static_cast<uint32_t>(head.number))});
    return true;
  }

  bool next_long(uint8_t first, Head& head) {
    switch (first) {
      case 0xc0:
        return whole(head, Head::Type::kNil, 0);
      case 0xc2:
      case 0xc3:
        return whole(head, Head::Type::kBool, first & 1);
      case 0xc4:
        return sized<uint8_t>(head, Head::Type::kBin);
      case 0xc5:
        return sized<uint16_t>(head, Head::Type::kBin);
      case 0xc6:
        return sized<uint32_t>(head, Head::Type::kBin);
      case 0xca:
        return float32(head);
      case 0xcb:
        return number<uint64_t>(head, Head::Type::kFloat);
      case 0xcc:
        return number<uint8_t>(head, Head::Type::kUnsigned);
      case 0xcd:
        return number<uint16_t>(head, Head::Type::kUnsigned);
      case 0xce:
        return number<uint32_t>(head, Head::Type::kUnsigned);
      case 0xcf:
        return number<uint64_t>(head, Head::Type::kUnsigned);
      case 0xd0:
        return number<int8_t>(head, Head::Type::kSigned);
      case 0xd1:
        return number<int16_t>(head, Head::Type::kSigned);
      case 0xd2:
        return number<int32_t>(head, Head::Type::kSigned);
      case 0xd3:
        return number<int64_t>(head, Head::Type::kSigned);
      default:
        return next_longer(first, head);
    }
  }

  bool next_longer(uint8_t first, Head& head) {
    switch (first) {
      case 0xc7:
        return sized_extension<uint8_t>(head);
      case 0xc8:
        return sized_extension<uint16_t>(head);
      case 0xc9:
        return sized_extension<uint32_t>(head);
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return extension(head, uint64_t{1} << (first - 0xd4));
      case 0xd9:
        return sized<uint8_t>(head, Head::Type::kStr);
      case 0xda:
        return sized<uint16_t>(head, Head::Type::kStr);
      case 0xdb:
        return sized<uint32_t>(head, Head::Type::kStr);
      case 0xdc:
        return number<uint16_t>(head, Head::Type::kList);
      case 0xdd:
        return number<uint32_t>(head, Head::Type::kList);
      case 0xde:
        return number<uint16_t>(head, Head::Type::kMap);
      case 0xdf:
        return number<uint32_t>(head, Head::Type::kMap);
      default:  // 0xc1
        return false;
    }
  }

  const char* at_;
  const char* const end_;
};

// Parses one value, which must be all of the bytes. Each function of the visitor returns whether to go on.
template <typename Visitor>
class Parser {
 public:
  Parser(std::string_view bytes, Visitor& visitor) : heads_(bytes), visitor_(visitor) {}

  bool parse() {
    while (true) {
      if (level_.is_map && level_.left % 2 == 0) visitor_.start_key();
      --level_.left;
      entered_ = false;
      if (!one()) return false;
      if (entered_ && level_.left != 0) continue;
      if (level_.left != 0 && !level_.is_map) continue;
      if (!close()) return false;
      if (outer_.empty() && level_.left == 0) return heads_.at_end();
    }
  }

 private:
  // A container that is being parsed; outside of all there is a list of the one value.
  struct Level {
    uint64_t left = 0;  // values to come: two for each entry of a map
    bool is_map = false;
  };

  void enter(uint64_t values, bool is_map) {
    outer_.push_back(level_);
    level_ = {values, is_map};
    entered_ = true;
  }

  // Ends the containers whose last value has been parsed.
  bool close() {
    while (true) {
      if (level_.is_map && level_.left % 2 == 1) visitor_.end_key();
      if (level_.left != 0 || outer_.empty()) return true;
      const bool is_map = level_.is_map;
      level_ = outer_.back();
      outer_.pop_back();
      if (!(is_map ? visitor_.end_map() : visitor_.end_list())) return false;
    }
  }

  // Part of the loop, with the visitor's functions, which are called from here alone.
  [[gnu::always_inline]] inline bool one() {
    if (heads_.at_end()) return false;
    if (visitor_.takes_whole(heads_.first())) {
      const std::string_view bytes = heads_.next_value();
      return !bytes.empty() && visitor_.visit_whole(bytes);
    }
    Head head;
    if (!heads_.next(head)) return false;
    switch (head.type) {
      case Head::Type::kNil:
        return visitor_.visit_nil();
      case Head::Type::kBool:
        return visitor_.visit_bool(head.number != 0);
      case Head::Type::kUnsigned:
        return visitor_.visit_unsigned(head.number);
      case Head::Type::kSigned:
        return visitor_.visit_signed(static_cast<int64_t>(head.number));
      case Head::Type::kFloat:
        return visitor_.visit_float(std::bit_cast<double>(head.number));
      case Head::Type::kStr:
        return visitor_.visit_str(head.data);
      case Head::Type::kBin:
        return visitor_.visit_bin(head.data);
      case Head::Type::kExt:
        return visitor_.visit_ext(head.code, head.data);
      case Head::Type::kList:
        enter(head.number, false);
        return visitor_.start_list(head.number);
      case Head::Type::kMap:
        enter(2 * head.number, true);
        return visitor_.start_map(head.number);
    }
    return false;
  }

  Heads heads_;
  Visitor& visitor_;
  Level level_{1, false};
  ShortVector<Level, 8> outer_;
  bool entered_ = false;  // the value that was parsed last is a container
};

}  // namespace rrpc::bind::plan
