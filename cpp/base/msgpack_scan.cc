#include "base/msgpack_scan.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/status.h"

namespace rrpc {
namespace {

struct Level {
  uint64_t left = 0;  // values to come: two for each entry of a map
  bool is_map = false;
  bool many = false;    // of a map: more than kKeysUnchecked entries
  bool first = false;   // of a list: the next value is its first
  bool record = false;  // of a list: it began with a record's mark
  size_t nesting = 0;   // of users' values

  size_t nesting_inside(bool map) const { return map && record ? nesting : nesting + 1; }
};

class Scan {
 public:
  explicit Scan(Bytes value) : at_(value.data()), end_(value.data() + value.size()), length_bytes_(value.size()) {}

  Result<MsgpackFacts> run() {
    levels_[0].left = 1;
    while (true) {
      while (levels_[depth_].left == 0) {
        if (depth_ == 0) return facts_;
        --depth_;
      }
      if (at_ == end_) return facts_;  // cut short, which the decoder will say
      if (!one_value()) return refusal_;
    }
  }

 private:
  size_t remaining() const { return static_cast<size_t>(end_ - at_); }

  // Big-endian, as MessagePack is. Of cut-off bytes: 0, and the end.
  uint64_t number(size_t bytes) {
    if (remaining() < bytes) {
      at_ = end_;
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(*at_++);
    return value;
  }

  void skip(uint64_t bytes) { at_ += std::min<uint64_t>(bytes, remaining()); }

  bool refuse(std::string why) {
    refusal_ = invalid_argument(std::move(why));
    return false;
  }

  // False: refused.
  bool one_value() {
    Level& level = levels_[depth_];
    const bool is_key = level.is_map && level.left % 2 == 0;
    const bool first = level.first;
    level.first = false;
    --level.left;
    const auto head = static_cast<uint8_t>(*at_++);
    const bool is_text = (head >= 0xa0 && head <= 0xbf) || (head >= 0xd9 && head <= 0xdb);
    const bool is_binary = head >= 0xc4 && head <= 0xc6;
    if (is_key && level.many && !is_text && !is_binary) facts_.keys_to_check = true;
    if (head <= 0x7f || head >= 0xe0) return true;
    if (head <= 0x8f) return enter(true, head & 0x0f);
    if (head <= 0x9f) return enter(false, head & 0x0f);
    if (head <= 0xbf) {
      skip(head & 0x1f);
      return true;
    }
    return long_value(head, first);
  }

  bool long_value(uint8_t head, bool first) {
    switch (head) {
      case 0xc4:  // bin, str
      case 0xd9:
        skip(number(1));
        return true;
      case 0xc5:
      case 0xda:
        skip(number(2));
        return true;
      case 0xc6:
      case 0xdb:
        skip(number(4));
        return true;
      case 0xc7:  // ext
        return extension(number(1), first);
      case 0xc8:
        return extension(number(2), first);
      case 0xc9:
        return extension(number(4), first);
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return extension(uint64_t{1} << (head - 0xd4), first);
      case 0xca:  // float 32 and 64
        skip(4);
        return true;
      case 0xcb:
        skip(8);
        return true;
      case 0xcc:  // ints
      case 0xcd:
      case 0xce:
      case 0xcf:
        skip(uint64_t{1} << (head - 0xcc));
        return true;
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3:
        skip(uint64_t{1} << (head - 0xd0));
        return true;
      case 0xdc:  // lists and maps
        return enter(false, number(2));
      case 0xdd:
        return enter(false, number(4));
      case 0xde:
        return enter(true, number(2));
      case 0xdf:
        return enter(true, number(4));
      default:  // nil, false, true, and what is no MessagePack
        return true;
    }
  }

  bool one_more() {
    if (++facts_.objects <= objects_max(length_bytes_)) return true;
    return refuse("more than " + std::to_string(objects_max(length_bytes_)) + " lists, dicts and other objects in " +
                  std::to_string(length_bytes_) + " bytes; pass numbers as arrays, or in several messages");
  }

  bool extension(uint64_t data_bytes, bool first) {
    const auto code = static_cast<int8_t>(number(1));
    if (code == kTimestamp) return refuse("extension code -1 is unknown");
    skip(data_bytes);
    if (first && code >= kFirstMark && code <= kRecordMark) {
      levels_[depth_].record = code == kRecordMark;
      return true;
    }
    return one_more();
  }

  bool enter(bool is_map, uint64_t count) {
    if (!one_more()) return false;
    const uint64_t values = is_map ? 2 * count : count;
    if (values > remaining())
      return refuse(std::string(is_map ? "a map" : "a list") + " of " + std::to_string(count) + " items in " +
                    std::to_string(remaining()) + " bytes");
    const size_t nesting = levels_[depth_].nesting_inside(is_map);
    if (nesting > kNestingMax)
      return refuse("nested deeper than " + std::to_string(kNestingMax) + " levels, arguments included");
    ++depth_;
    levels_[depth_] = {values, is_map, is_map && count > kKeysUnchecked, !is_map, false, nesting};
    return true;
  }

  const std::byte* at_;
  const std::byte* end_;
  const uint64_t length_bytes_;
  MsgpackFacts facts_;
  Status refusal_;
  size_t depth_ = 0;
  std::array<Level, 2 * kNestingMax + 1> levels_{};
};

}  // namespace

Result<MsgpackFacts> scan_msgpack(Bytes value) { return Scan(value).run(); }

}  // namespace rrpc
