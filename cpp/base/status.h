// Status: how every fallible operation of the core reports. The codes are gRPC's sixteen plus ok, and
// rrpc/errors.py mirrors them; a protocol violation by a peer is Internal with `is_protocol_error()`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace rrpc {

enum class StatusCode : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

constexpr uint8_t kStatusCodeMax = 16;

std::string_view status_code_name(StatusCode code);

// One pointer, null when ok: nearly every call of the core gives one. What a Status was moved from is ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : Status(code, std::move(message), false) {}
  Status(const Status& other) : error_(other.error_ == nullptr ? nullptr : std::make_unique<Error>(*other.error_)) {}
  Status& operator=(const Status& other) {
    if (this != &other) *this = Status(other);
    return *this;
  }
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  // The peer broke the protocol: its connection must close, nothing else may be disturbed.
  static Status protocol_error(std::string message) { return {StatusCode::kInternal, std::move(message), true}; }
  // Out of line, to keep its callers small.
  [[gnu::cold]] static Status protocol_error(const char* message);
  // "what: strerror(error_number)", with the code that fits the errno.
  static Status from_errno(int error_number, std::string_view what);

  bool ok() const { return error_ == nullptr; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return ok() ? StatusCode::kOk : error_->code; }
  const std::string& message() const;
  bool is_protocol_error() const { return !ok() && error_->protocol_error; }
  std::string to_string() const;

 private:
  struct Error {
    StatusCode code;
    bool protocol_error;
    std::string message;
  };

  Status(StatusCode code, std::string message, bool protocol_error)
      : error_(code == StatusCode::kOk ? nullptr
                                       : std::make_unique<Error>(Error{code, protocol_error, std::move(message)})) {}

  std::unique_ptr<Error> error_;
};

inline Status cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
[[gnu::cold]] Status invalid_argument(const char* m);
inline Status deadline_exceeded(std::string m) { return {StatusCode::kDeadlineExceeded, std::move(m)}; }
inline Status permission_denied(std::string m) { return {StatusCode::kPermissionDenied, std::move(m)}; }
// In the place of std::bad_alloc, where it may end a call or a connection.
Status out_of_memory();
inline Status resource_exhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
inline Status failed_precondition(std::string m) { return {StatusCode::kFailedPrecondition, std::move(m)}; }
[[gnu::cold]] Status failed_precondition(const char* m);
inline Status unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
[[gnu::cold]] Status internal_error(const char* m);
inline Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }

#define RRPC_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                       \
    if (::rrpc::Status rrpc_status_ = (expression); !rrpc_status_.ok()) return rrpc_status_; \
  } while (false)

}  // namespace rrpc
