#include "provider/tcp/input.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace rrpc::provider::tcp {

static constexpr size_t kBulkReadAheadBytes = 4 << 10;
static constexpr size_t kLandingBytesPerRead = 2 << 20;

void Input::land(std::span<const iovec> parts, uint64_t length_bytes) {
  // Parts longer than the message (a receive buffer) are cut to it.
  part_ = 0;
  dropping_ = false;
  landing_bytes_ = length_bytes;
  uint64_t rest = length_bytes;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i] = i < parts.size() ? parts[i] : iovec{};
    parts_[i].iov_len = static_cast<size_t>(std::min<uint64_t>(parts_[i].iov_len, rest));
    rest -= parts_[i].iov_len;
  }
  RRPC_CHECK(rest == 0, "landing memory too short");
}

void Input::drop(uint64_t length_bytes) {
  land({}, 0);
  dropping_ = true;
  landing_bytes_ = length_bytes;
}

void Input::landed(size_t bytes) {
  landing_bytes_ -= bytes;
  while (bytes > 0) {
    iovec& part = parts_[part_];
    const size_t taken = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
    part.iov_len -= taken;
    bytes -= taken;
    if (part.iov_len == 0) ++part_;
  }
}

bool Input::land_buffered() {
  if (dropping_) {
    const auto taken = static_cast<size_t>(std::min<uint64_t>(landing_bytes_, end_ - begin_));
    begin_ += taken;
    landing_bytes_ -= taken;
    return landing_bytes_ == 0;
  }
  while (landing_bytes_ > 0 && begin_ < end_) {
    const iovec& part = parts_[part_];
    if (part.iov_len == 0) {
      ++part_;
      continue;
    }
    const size_t taken = std::min(part.iov_len, end_ - begin_);
    std::memcpy(part.iov_base, buffer_.get() + begin_, taken);
    begin_ += taken;
    landed(taken);
  }
  return landing_bytes_ == 0;
}

size_t Input::landing_iovecs(std::span<iovec> out) const {
  size_t count = 0;
  size_t room_bytes = kLandingBytesPerRead;
  for (size_t i = part_; i < parts_.size() && room_bytes > 0; ++i) {
    if (parts_[i].iov_len == 0) continue;
    out[count] = {parts_[i].iov_base, std::min(parts_[i].iov_len, room_bytes)};
    room_bytes -= out[count++].iov_len;
  }
  return count;
}

ReadOutcome Input::read_some(const Wire& wire, bool bulk_expected) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {  // the piece of a header
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec parts[kSgeCountMax + 1];
  size_t count = 0;
  size_t asked_bytes = 0;
  uint64_t direct_bytes = 0;
  if (landing_bytes_ > 0) {
    count = landing_iovecs(parts);
    for (size_t i = 0; i < count; ++i) direct_bytes += parts[i].iov_len;
  }
  if (direct_bytes == landing_bytes_ || dropping_) {
    const bool bulk = bulk_expected || direct_bytes > kBulkReadAheadBytes;
    parts[count++] = {buffer_.get() + end_, std::min(kBufferBytes - end_, bulk ? kBulkReadAheadBytes : kBufferBytes)};
    asked_bytes = parts[count - 1].iov_len;
  }
  asked_bytes += direct_bytes;
  const TlsChannel::Outcome got = wire.receive({parts, count});
  if (got.bytes == 0) return {.end_of_stream = got.end_of_stream, .error_number = got.error_number};
  const size_t read_bytes = got.bytes;
  const auto landed_bytes = static_cast<size_t>(std::min<uint64_t>(read_bytes, direct_bytes));
  landed(landed_bytes);
  end_ += read_bytes - landed_bytes;
  return {.read_bytes = read_bytes,
          .cost_bytes = std::max(read_bytes, got.cost),
          .more_likely = read_bytes == asked_bytes || wire.has_input()};
}

}  // namespace rrpc::provider::tcp
