// Where one buffer of a message lies at its receiver: in a block of this process's pool, or where it was, in memory of
// the peer that this process reads in place.
#pragma once

#include <memory>
#include <utility>

#include "endpoint/pool.h"
#include "provider/lending.h"

namespace rrpc::endpoint {

class ReceivedBlock {
 public:
  ReceivedBlock() = default;
  ReceivedBlock(PoolBlock block) : block_(std::move(block)) {}  // NOLINT(google-explicit-constructor)
  explicit ReceivedBlock(std::unique_ptr<provider::BorrowedRange> range) : range_(std::move(range)) {}

  std::byte* data() const { return range_ ? range_->data() : block_.data(); }
  size_t size() const { return range_ ? range_->size() : block_.size(); }
  bool read_only() const { return range_ != nullptr; }
  explicit operator bool() const { return range_ != nullptr || static_cast<bool>(block_); }

 private:
  PoolBlock block_;
  std::unique_ptr<provider::BorrowedRange> range_;
};

}  // namespace rrpc::endpoint
