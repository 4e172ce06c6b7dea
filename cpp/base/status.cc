#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace rrpc {

std::string_view status_code_name(StatusCode code) {
  static constexpr std::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

static StatusCode code_for_errno(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
      return StatusCode::kPermissionDenied;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
      return StatusCode::kResourceExhausted;
    case EADDRINUSE:
    case EEXIST:
      return StatusCode::kAlreadyExists;
    case EINVAL:
      return StatusCode::kInvalidArgument;
    case ETIMEDOUT:
      return StatusCode::kDeadlineExceeded;
    case ENOSYS:
    case EOPNOTSUPP:
      return StatusCode::kUnimplemented;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOENT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENOTCONN:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

Status Status::from_errno(int error_number, std::string_view what) {
  return {code_for_errno(error_number), std::string(what) + ": " + std::strerror(error_number)};
}

Status Status::protocol_error(const char* message) { return protocol_error(std::string(message)); }
Status invalid_argument(const char* m) { return invalid_argument(std::string(m)); }
Status failed_precondition(const char* m) { return failed_precondition(std::string(m)); }
Status internal_error(const char* m) { return internal_error(std::string(m)); }

Status out_of_memory() {
  return resource_exhausted(
      "the process is out of memory: lower its limits (pool limit, queued_bytes_max) or give it more");
}

const std::string& Status::message() const {
  static const std::string none;
  return ok() ? none : error_->message;
}

std::string Status::to_string() const {
  std::string text(status_code_name(code()));
  if (!message().empty()) text += ": " + message();
  return text;
}

}  // namespace rrpc
