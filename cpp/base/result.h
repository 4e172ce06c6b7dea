// Result<T>: a value or the Status that says why there is none.
#pragma once

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace rrpc {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    RRPC_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& value() & {
    RRPC_CHECK(ok(), status_.message().c_str());
    return *value_;
  }
  const T& value() const& {
    RRPC_CHECK(ok(), status_.message().c_str());
    return *value_;
  }
  T&& value() && {
    RRPC_CHECK(ok(), status_.message().c_str());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define RRPC_CONCAT_INNER(a, b) a##b
#define RRPC_CONCAT(a, b) RRPC_CONCAT_INNER(a, b)
// RRPC_ASSIGN_OR_RETURN(auto x, expression-of-Result<T>);
#define RRPC_ASSIGN_OR_RETURN(declaration, expression)                                                \
  auto RRPC_CONCAT(rrpc_result_, __LINE__) = (expression);                                            \
  if (!RRPC_CONCAT(rrpc_result_, __LINE__).ok()) return RRPC_CONCAT(rrpc_result_, __LINE__).status(); \
  declaration = std::move(RRPC_CONCAT(rrpc_result_, __LINE__)).value()

}  // namespace rrpc
