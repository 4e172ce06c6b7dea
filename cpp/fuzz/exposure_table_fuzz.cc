// A table of exposures beside a model of it: whatever a peer asks for, it reaches what is open to it and nothing else.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "provider/exposure_table.h"

namespace rrpc::provider {
namespace {

constexpr size_t kMemoryBytes = 256;

struct Open {
  size_t offset = 0;
  size_t length_bytes = 0;
  uint32_t access = 0;
};

// Takes numbers off the input; zeros when it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t length_bytes) : data_(data), left_(length_bytes) {}
  bool ended() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

class Memory final : public MemoryRegion {
 public:
  explicit Memory(std::byte* address) : MemoryRegion({.address = address, .length_bytes = kMemoryBytes}, 0) {}
};

void run(Input input) {
  std::array<std::byte, kMemoryBytes> bytes{};
  const Memory memory(bytes.data());
  ExposureTable table(input.byte());
  std::map<uint32_t, Open> open;  // by rkey
  std::vector<uint32_t> keys;     // also those that are closed
  const auto some_key = [&]() -> uint32_t {
    const uint8_t at = input.byte();
    return keys.empty() || at == 255 ? static_cast<uint32_t>(input.word()) : keys[at % keys.size()];
  };
  while (!input.ended()) {
    switch (input.byte() % 3) {
      case 0: {
        const size_t offset = input.byte();
        const size_t length_bytes = input.byte() % (kMemoryBytes - offset + 1);
        const uint32_t access = input.byte() % 2 == 0 ? kRemoteRead : kRemoteRead | kRemoteWrite;
        const auto rkey = table.add(memory, bytes.data() + offset, length_bytes, access);
        if (!rkey.ok()) break;
        if (!open.emplace(*rkey, Open{offset, length_bytes, access}).second) __builtin_trap();  // one that is in use
        keys.push_back(*rkey);
        break;
      }
      case 1: {
        const uint32_t rkey = some_key();
        if (table.remove(rkey) != (open.erase(rkey) == 1)) __builtin_trap();
        break;
      }
      default: {
        const uint32_t rkey = some_key();
        const auto base = reinterpret_cast<uint64_t>(bytes.data());
        const uint64_t address = input.byte() % 2 == 0 ? base + input.byte() : input.word();
        const uint64_t length_bytes = input.byte() % 2 == 0 ? input.byte() : input.word();
        const Access wanted = input.byte() % 2 == 0 ? kRemoteRead : kRemoteWrite;
        const auto found = open.find(rkey);
        const bool allowed = found != open.end() && (found->second.access & wanted) != 0 &&
                             address >= base + found->second.offset &&
                             address - base - found->second.offset <= found->second.length_bytes &&
                             length_bytes <= found->second.length_bytes - (address - base - found->second.offset);
        const auto given = table.check(rkey, address, length_bytes, wanted);
        if (given.ok() && !allowed) __builtin_trap();
        if (given.ok() && reinterpret_cast<uint64_t>(*given) != address) __builtin_trap();
      }
    }
    if (table.size() != open.size()) __builtin_trap();
  }
}

}  // namespace
}  // namespace rrpc::provider

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  rrpc::provider::run({data, length_bytes});
  return 0;
}
