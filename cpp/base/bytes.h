// Reading and writing little-endian wire bytes, every read bounds-checked.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace rrpc {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian; a big-endian port must swap here");

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// memcpy() of what is short most of the time, without a call then: by two moves that overlap, unless they meet.
[[gnu::always_inline]] inline void copy_short(std::byte* target, const std::byte* source, size_t length_bytes) {
  const auto ends = [&]<typename T>(T) {
    T first, last;
    std::memcpy(&first, source, sizeof(T));
    std::memcpy(&last, source + length_bytes - sizeof(T), sizeof(T));
    std::memcpy(target, &first, sizeof(T));
    std::memcpy(target + length_bytes - sizeof(T), &last, sizeof(T));
  };
  using Words = std::array<uint64_t, 2>;
  if (length_bytes > 2 * sizeof(Words))
    std::memcpy(target, source, length_bytes);
  else if (length_bytes >= sizeof(Words))
    ends(Words{});
  else if (length_bytes >= sizeof(uint64_t))
    ends(uint64_t{});
  else if (length_bytes >= sizeof(uint32_t))
    ends(uint32_t{});
  else
    for (size_t i = 0; i < length_bytes; ++i) target[i] = source[i];
}

// Copies the part, and gives where the next one goes.
[[gnu::always_inline]] inline std::byte* append(std::byte* target, Bytes part) {
  copy_short(target, part.data(), part.size());
  return target + part.size();
}

// Reads past the end give zero values and set failed(); check once after the last read.
class ByteReader {
 public:
  explicit ByteReader(Bytes bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  T read() {
    T value{};
    if (Bytes part = take(sizeof(T)); part.size() == sizeof(T)) std::memcpy(&value, part.data(), sizeof(T));
    return value;
  }
  Bytes take(size_t count) {
    if (count > bytes_.size()) {
      failed_ = true;
      bytes_ = {};
      return {};
    }
    Bytes part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }
  Bytes rest() { return take(bytes_.size()); }
  size_t remaining() const { return bytes_.size(); }
  bool failed() const { return failed_; }

 private:
  Bytes bytes_;
  bool failed_ = false;
};

// Writes into memory that the caller sized; writing past the end sets failed() and writes nothing.
class ByteWriter {
 public:
  explicit ByteWriter(MutableBytes bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void write(const T& value) {
    write_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void write_bytes(Bytes part) {
    if (part.size() > bytes_.size() - used_) {
      failed_ = true;
      return;
    }
    if (!part.empty()) std::memcpy(bytes_.data() + used_, part.data(), part.size());
    used_ += part.size();
  }
  size_t used() const { return used_; }
  Bytes written() const { return bytes_.first(used_); }
  bool failed() const { return failed_; }

 private:
  MutableBytes bytes_;
  size_t used_ = 0;
  bool failed_ = false;
};

}  // namespace rrpc
