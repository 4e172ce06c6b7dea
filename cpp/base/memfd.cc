#include "base/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace rrpc {

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<SharedMapping> SharedMapping::create_mapped(const char* name, size_t length_bytes) {
  SharedMapping mapping;
  mapping.fd_.reset(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!mapping.fd_ && (errno == EMFILE || errno == ENFILE))
    return Status::from_errno(errno, "no file descriptor left for shared memory (raise 'ulimit -n')");
  if (!mapping.fd_) return Status::from_errno(errno, "memfd_create");
  // Another user who is given a descriptor can't open the file again in other ways (/proc/self/fd).
  if (fchmod(mapping.fd(), 0600) != 0) return Status::from_errno(errno, "setting the mode of shared memory");
  if (ftruncate(mapping.fd(), static_cast<off_t>(length_bytes)) != 0)
    return Status::from_errno(errno, "sizing shared memory of " + std::to_string(length_bytes) + " bytes");
  void* address = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mapping.fd(), 0);
  if (address == MAP_FAILED)
    return Status::from_errno(errno, "mapping shared memory of " + std::to_string(length_bytes) + " bytes");
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_ = length_bytes;
  return mapping;
}

Status SharedMapping::seal(int fd, int seals) {
  if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return {};
  return Status::from_errno(errno, "sealing shared memory");
}

Result<SharedMapping> SharedMapping::create(const char* name, size_t length_bytes, bool peers_may_write) {
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, create_mapped(name, length_bytes));
  // A kernel before 5.1 lacks FUTURE_WRITE: the size seals alone are what memory safety needs.
  if (!peers_may_write && seal(mapping.fd(), F_SEAL_FUTURE_WRITE).ok()) return mapping;
  RRPC_RETURN_IF_ERROR(seal(mapping.fd(), 0));
  return mapping;
}

Result<SharedMapping> SharedMapping::create_read_only(const char* name, size_t length_bytes) {
  RRPC_ASSIGN_OR_RETURN(SharedMapping mapping, create_mapped(name, length_bytes));
  RRPC_RETURN_IF_ERROR(seal(mapping.fd(), 0));
  if (fchmod(mapping.fd(), S_IRUSR) != 0) return Status::from_errno(errno, "protecting shared memory");
  const std::string path = "/proc/self/fd/" + std::to_string(mapping.fd());
  UniqueFd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only) return Status::from_errno(errno, "opening shared memory for reading");
  mapping.fd_ = std::move(read_only);
  return mapping;
}

Result<SharedMapping> SharedMapping::adopt(UniqueFd fd, size_t length_bytes, bool writable) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Status::from_errno(errno, "fstat of the peer's shared memory");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status::protocol_error("the peer's shared memory is not sealed against shrinking");
  if (length_bytes == 0 || static_cast<size_t>(info.st_size) != length_bytes)
    return Status::protocol_error("the peer's shared memory has " + std::to_string(info.st_size) +
                                  " bytes, it announced " + std::to_string(length_bytes));
  void* address = mmap(nullptr, length_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return Status::from_errno(errno, "mapping the peer's shared memory");
  SharedMapping mapping;
  mapping.fd_ = std::move(fd);
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_ = length_bytes;
  return mapping;
}

}  // namespace rrpc
