// A sealed anonymous shared-memory file with its mapping. Peers on this host may map the file; its size
// is sealed so that no peer can truncate it under a reader.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "base/unique_fd.h"

namespace rrpc {

class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  // `peers_may_write` false seals the file so that later mappings can only be read-only.
  static Result<SharedMapping> create(const char* name, size_t length_bytes, bool peers_may_write);
  // Its only descriptor can't write. A peer of another user that is given it can't open it again for writing either:
  // the file's mode denies that. Pages can be given back, which a seal against writing would forbid.
  static Result<SharedMapping> create_read_only(const char* name, size_t length_bytes);
  // Maps a file received from a peer; refuses one whose size isn't sealed or isn't `length_bytes`.
  static Result<SharedMapping> adopt(UniqueFd fd, size_t length_bytes, bool writable);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  // The mapping outlives its file descriptor; a server with a thousand peers can't keep both.
  void close_fd() { fd_.reset(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  // Without seals.
  static Result<SharedMapping> create_mapped(const char* name, size_t length_bytes);
  static Status seal(int fd, int seals);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace rrpc
