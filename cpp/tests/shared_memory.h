// Vectors whose memory a peer on this host can map.
#pragma once

#include <map>
#include <vector>

#include "base/memfd.h"
#include "provider/provider.h"

namespace rrpc::provider {

class SharedMappings {
 public:
  static std::byte* make(size_t length_bytes) {
    auto mapping = SharedMapping::create("rrpc-test", length_bytes, true);
    std::byte* data = mapping.value().data();
    all().emplace(data, std::move(mapping).value());
    return data;
  }
  static void end(std::byte* data) { all().erase(data); }
  static int fd_of(const std::byte* data) {
    const auto found = all().find(data);
    return found != all().end() ? found->second.fd() : -1;
  }

 private:
  static std::map<const std::byte*, SharedMapping>& all() {
    static std::map<const std::byte*, SharedMapping> mappings;
    return mappings;
  }
};

template <typename T>
struct SharedAllocator {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard's name
  SharedAllocator() = default;
  template <typename U>
  explicit SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(size_t count) { return reinterpret_cast<T*>(SharedMappings::make(count * sizeof(T))); }
  void deallocate(T* data, size_t) { SharedMappings::end(reinterpret_cast<std::byte*>(data)); }
  bool operator==(const SharedAllocator&) const { return true; }
};

// Sized once: the file behind it is as long as the first allocation.
using SharedBytes = std::vector<std::byte, SharedAllocator<std::byte>>;

inline MemoryRange shared_range(SharedBytes& bytes) {
  return {bytes.data(), bytes.size(), SharedMappings::fd_of(bytes.data()), true};
}

}  // namespace rrpc::provider
