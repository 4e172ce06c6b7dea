#include "provider/tcp/output.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rrpc::provider::tcp {

static constexpr size_t kIovecsMax = 64;

// Calls visit(address, length) for the pieces of the frame that are still to be written; stops when it returns false.
template <typename Visit>
static void for_each_rest(const OutFrame& frame, Visit visit) {
  uint64_t skip = frame.written_bytes;
  auto piece = [&](const void* address, size_t length_bytes) {
    const auto skipped = static_cast<size_t>(std::min<uint64_t>(skip, length_bytes));
    skip -= skipped;
    return skipped == length_bytes || visit(static_cast<const std::byte*>(address) + skipped, length_bytes - skipped);
  };
  if (!piece(frame.header.data(), frame.header.size())) return;
  for (const iovec& part : frame.parts) {
    if (!piece(part.iov_base, part.iov_len)) return;
  }
}

void append_rest(const OutFrame& frame, std::vector<std::byte>& out) {
  for_each_rest(frame, [&](const std::byte* address, size_t length_bytes) {
    out.insert(out.end(), address, address + length_bytes);
    return true;
  });
}

std::byte* Output::stage(size_t length_bytes) {
  if (staged_begin_ == staged_end_) staged_begin_ = staged_end_ = 0;
  if (kStagedBytes - staged_end_ < length_bytes) return nullptr;
  if (staged_ == nullptr) staged_.reset(new std::byte[kStagedBytes]);
  return staged_.get() + staged_end_;
}

Bytes Output::take_staged() {
  const size_t begin = std::exchange(staged_begin_, staged_end_);
  return {staged_.get() + begin, staged_end_ - begin};
}

void Output::pop() {
  pending_bytes_ -= front().total_bytes - front().written_bytes;
  std::vector<std::byte>().swap(front().owned);
  frames_.pop();
}

OutFrame& Output::push(const FrameHeader& header, OutFrame::Source source) {
  OutFrame& frame = frames_.push_slot();
  frame.header = encode_header(header);
  frame.source = source;
  frame.parts = {};
  frame.written_bytes = 0;
  frame.total_bytes = kFrameHeaderBytes + header.payload_bytes();
  pending_bytes_ += frame.total_bytes;
  frame.sequence = 0;
  frame.rkey = 0;
  return frame;
}

void Output::push_control(const FrameHeader& header, std::vector<std::byte> body) {
  OutFrame& frame = push(header, OutFrame::Source::kControl);
  frame.owned = std::move(body);
  frame.single = {frame.owned.data(), frame.owned.size()};
  frame.parts = {&frame.single, 1};
}

void Output::push_request(const FrameHeader& header, std::span<const iovec> parts, uint64_t sequence) {
  OutFrame& frame = push(header, OutFrame::Source::kRequest);
  frame.parts = parts;
  frame.sequence = sequence;
}

void Output::push_exposed(OutFrame::Source source, const FrameHeader& header, std::byte* bytes, uint32_t rkey) {
  OutFrame& frame = push(header, source);
  frame.single = {bytes, header.length_bytes};
  frame.parts = {&frame.single, 1};
  frame.rkey = rkey;
}

void Output::own_pushed(uint32_t rkey) {
  for (size_t i = 0; i < frames_.size(); ++i) {
    OutFrame& frame = frames_[i];
    if (frame.source != OutFrame::Source::kPush || frame.rkey != rkey) continue;
    const auto* const bytes = static_cast<const std::byte*>(frame.single.iov_base);
    frame.owned.assign(bytes, bytes + frame.single.iov_len);
    frame.single.iov_base = frame.owned.data();
    frame.rkey = 0;
  }
}

size_t Output::gather(std::span<iovec> out, size_t bytes_max, size_t& asked_bytes) {
  size_t count = 0;
  if (staged_begin_ < staged_end_) {
    out[count++] = {staged_.get() + staged_begin_, staged_end_ - staged_begin_};
    asked_bytes += staged_end_ - staged_begin_;
  }
  for (size_t i = 0; i < frames_.size() && count < out.size() && asked_bytes < bytes_max; ++i) {
    for_each_rest(frames_[i], [&](const std::byte* address, size_t length_bytes) {
      const size_t taken = std::min(length_bytes, bytes_max - asked_bytes);
      out[count++] = {const_cast<std::byte*>(address), taken};
      asked_bytes += taken;
      return count < out.size() && asked_bytes < bytes_max;
    });
  }
  return count;
}

void Output::advance(size_t bytes) {
  const size_t of_staged = std::min(bytes, staged_end_ - staged_begin_);
  staged_begin_ += of_staged;
  bytes -= of_staged;
  pending_bytes_ -= bytes;
  for (size_t i = 0; bytes > 0; ++i) {
    OutFrame& frame = frames_[i];
    const auto taken = static_cast<size_t>(std::min<uint64_t>(bytes, frame.total_bytes - frame.written_bytes));
    frame.written_bytes += taken;
    bytes -= taken;
  }
}

WriteOutcome Output::write_some(const Wire& wire, size_t bytes_max) {
  iovec parts[kIovecsMax];
  size_t asked_bytes = 0;
  const size_t count = gather(parts, bytes_max, asked_bytes);
  const TlsChannel::Outcome sent = wire.send({parts, count});
  advance(sent.bytes);
  if (sent.error_number != 0 && sent.error_number != EAGAIN)
    return {.written_bytes = sent.bytes, .error_number = sent.error_number};
  return {.written_bytes = sent.bytes, .blocked = sent.bytes < asked_bytes || wire.has_output()};
}

}  // namespace rrpc::provider::tcp
