// Bytes that follow a message unasked, for the READ that its receiver is going to post: one way less on the wire.
#include <algorithm>
#include <utility>

#include "provider/tcp/queue_pair.h"

namespace rrpc::provider::tcp {

// So many messages aren't followed by anything once the peer asked for what it had been pushed: it had no room yet.
static constexpr uint32_t kUnpushedMessages = 64;

// --- the owner ---------------------------------------------------------------------------------------

// How many of the ranges follow their message: whole ones, in order.
size_t TcpQueuePair::pushes_for(std::span<const RemoteRange> ranges) {
  if (ranges.empty() || limits_.pushed_bytes_max == 0) return 0;
  if (pause_pushes_ > 0) {
    --pause_pushes_;
    return 0;
  }
  size_t count = 0;
  uint64_t bytes = 0;
  for (const size_t room = output_.room() - 1; count < ranges.size() && count < room; ++count) {
    const RemoteRange& range = ranges[count];
    bytes += range.length_bytes;
    if (bytes > kPushedBytesMax) break;
    if (!exposures_.check(range.rkey, range.address, range.length_bytes, kRemoteRead).ok()) break;
  }
  return count;
}

void TcpQueuePair::push_ranges(std::span<const RemoteRange> ranges) {
  for (const RemoteRange& range : ranges) {
    const FrameHeader header{.type = FrameType::kPush,
                             .rkey = range.rkey,
                             .address = range.address,
                             .length_bytes = static_cast<uint32_t>(range.length_bytes)};
    output_.push_exposed(OutFrame::Source::kPush, header,
                         exposures_.check(range.rkey, range.address, range.length_bytes, kRemoteRead).value(),
                         range.rkey);
    pushed_lately_[pushed_count_++ % pushed_lately_.size()] = range.rkey;
  }
}

void TcpQueuePair::note_asked_for(uint32_t rkey) {
  const auto pushed = std::ranges::find(pushed_lately_, rkey);
  if (pushed == pushed_lately_.end()) return;
  *pushed = 0;
  pause_pushes_ = kUnpushedMessages;
}

// --- the reader --------------------------------------------------------------------------------------

// Whether a READ that is posted now may be answered by what is being pushed, or is about to be.
bool TcpQueuePair::may_be_pushed(const SendRequest& request) const {
  if (pushes_due_ > 0) return true;
  return pushing() && request.rkey == frame_.rkey && request.remote_address >= push_.at &&
         request.remote_address - push_.at < push_.left_bytes;
}

void TcpQueuePair::begin_push() {
  if (pushes_due_ == 0) return fail_protocol(Status::protocol_error("a PUSH frame that no SEND announced"));
  if (frame_.length_bytes > push_room_bytes_) {
    return fail_protocol(Status::protocol_error("PUSH frames of more than " + std::to_string(kPushedBytesMax) +
                                                " bytes behind one SEND"));
  }
  --pushes_due_;
  push_room_bytes_ -= frame_.length_bytes;
  push_ = Push(frame_.address, frame_.length_bytes);
}

// All that was to land has. False: more of the frame has a place, or its reader is about to post one.
bool TcpQueuePair::continue_push() {
  if (push_.reading) {
    SendRequest& read = sends_.at(*push_.reading);
    read.state = SendRequest::State::kDone;
    push_.at += read.length_bytes;
    push_.left_bytes -= read.length_bytes;
    push_.reading.reset();
    complete_done();
    news_in_this_poll_ = true;
  }
  if (push_.left_bytes == 0) return true;
  const auto fits = std::ranges::find_if(reads_held_, [&](uint64_t sequence) {
    const SendRequest& read = sends_.at(sequence);
    return read.rkey == frame_.rkey && read.remote_address == push_.at && read.length_bytes <= push_.left_bytes;
  });
  if (fits != reads_held_.end()) {
    SendRequest& read = sends_.at(*fits);
    push_.reading = *fits;
    reads_held_.erase(fits);
    input_.land(read.part_span(), read.length_bytes);
  } else if (news_in_this_poll_) {
    push_.waits = true;  // whoever polls has yet to see the message, or that it may post another READ
    cq_.note_moved_bytes();
  } else {
    input_.drop(std::exchange(push_.left_bytes, 0));
  }
  return false;
}

// READs for which nothing was pushed after all.
bool TcpQueuePair::ask_for_held() {
  if (reads_held_.empty() || pushes_due_ > 0 || (pushing() && push_.left_bytes > 0)) return false;
  if (reads_in_flight_.size() >= reads_in_flight_max_) return false;
  const uint64_t sequence = reads_held_.front();
  reads_held_.erase(reads_held_.begin());
  reads_in_flight_.push(sequence);
  write_request(sends_.at(sequence), sequence, {});
  return true;
}

}  // namespace rrpc::provider::tcp
