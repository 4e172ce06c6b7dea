// What goes out: messages under credits, transfers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "endpoint/endpoint.h"
#include "endpoint/work_ids.h"

namespace rrpc::endpoint {

using provider::Opcode;
using provider::QueuePairState;
using provider::Sge;
using provider::WorkRequest;

namespace {

constexpr size_t kMessagePartsMax = 8;

// Leaves the elements uninitialised that are not added.
class SgeList {
 public:
  SgeList() {}  // NOLINT(modernize-use-equals-default): which a union member forbids
  void add(const void* data, size_t length_bytes) {
    items_[count_++] = {static_cast<std::byte*>(const_cast<void*>(data)), static_cast<uint32_t>(length_bytes), nullptr};
  }
  std::span<const Sge> view() const { return {items_, count_}; }

 private:
  union {
    Sge items_[kMessagePartsMax];
  };
  size_t count_ = 0;
};

}  // namespace

void Endpoint::send(uint8_t type, std::span<const Bytes> parts, Pushes pushes, bool solicited) {
  RRPC_CHECK(may_send(class_of(type)), "no send without a credit");
  RRPC_CHECK(parts.size() < kMessagePartsMax, "too many message parts");
  size_t body_bytes = 0;
  for (const Bytes part : parts) body_bytes += part.size();
  const bool may_reserve = (solicited || !cq_->knows_solicited()) && bytes_alone(pushes);
  if (std::byte* body = may_reserve ? begin_message(type, body_bytes) : nullptr; body != nullptr) {
    for (const Bytes part : parts) body = append(body, part);
    return commit_message();
  }
  if (gathered_count_ > 0) repost_gathered();
  if (failed()) return;
  MessageHeader header = take_credit(type, body_bytes);
  if (body_bytes >= plain_bytes_end_) return send_protected(header, parts, pushes);
  post_message(header, parts, pushes, solicited);
}

// A message takes a place in the send queue. Its completion, if it is to have one, retires it and all before it that
// had none; there is one often enough that a full queue can't be all without.
Endpoint::SendId Endpoint::take_send_place(const SendBuffers::Buffer& buffer) {
  send_buffers_.posted(buffer);
  ++sends_unretired_;
  SendId id{.wr_id = kTagSend | ++sends_since_signal_};
  id.signalled =
      sends_since_signal_ >= std::max(1u, send_slot_count_ / 4) || (buffer.memory != nullptr && send_buffers_.scarce());
  if (id.signalled) sends_since_signal_ = 0;
  return id;
}

void Endpoint::commit_counted() {
  const SendId id = take_send_place({});
  holds_ = qp_->commit_message(hold_, id.signalled ? id.wr_id : provider::QueuePair::kNoCompletion);
}

void Endpoint::post_message(const MessageHeader& header, std::span<const Bytes> parts, Pushes pushes, bool solicited) {
  SgeList sges;
  sges.add(&header, sizeof(header));
  for (const Bytes part : parts)
    if (!part.empty()) sges.add(part.data(), part.size());
  const size_t length_bytes = sizeof(header) + header.body_bytes;
  WorkRequest request;
  request.pushes = pushes;
  request.sges = sges.view();
  request.inline_data = length_bytes <= limits_.inline_bytes_max && request.sges.size() <= limits_.sge_count_max;
  SendBuffers::Buffer buffer;
  Sge joined;
  if (!request.inline_data) {
    buffer = join(request.sges);
    joined = {buffer.memory, static_cast<uint32_t>(length_bytes), buffer.region};
    request.sges = {&joined, 1};
  }
  const SendId id = take_send_place(buffer);
  request.wr_id = id.wr_id;
  request.signalled = id.signalled;
  request.more = hold_;
  request.solicited = solicited;
  if (next_invalidates_ != 0) {
    request.invalidate_rkey = std::exchange(next_invalidates_, 0);
    tally(&Counters::exposures_invalidated);
  }
  const Status status = qp_->post_send({&request, 1});
  holds_ = qp_->holds();
  if (!status.ok()) [[unlikely]]
    fail(status);
}

SendBuffers::Buffer Endpoint::join(std::span<const Sge> parts) {
  const SendBuffers::Buffer buffer = send_buffers_.take();
  std::byte* target = buffer.memory;
  for (const Sge& part : parts) {
    std::memcpy(target, part.address, part.length_bytes);
    target += part.length_bytes;
  }
  return buffer;
}

void Endpoint::start_transfer(uint64_t cookie, Opcode opcode, std::vector<TransferSegment> segments) {
  if (protector_ != nullptr) [[unlikely]] {
    const bool sealed = std::ranges::all_of(segments, [](const TransferSegment& one) { return one.seal != nullptr; });
    RRPC_CHECK(opcode == Opcode::kRead && sealed, "a protected connection only READs, and nothing without a seal");
  }
  bulk_.start(cookie, opcode, std::move(segments));
  if (failed())
    bulk_.cancel(cookie);
  else
    pump();
  if (!in_progress_) deliver_finished_transfers();
}

void Endpoint::cancel_transfer(uint64_t cookie) {
  bulk_.cancel(cookie);
  if (!in_progress_) deliver_finished_transfers();
}

void Endpoint::pump() {
  if (qp_->state() == QueuePairState::kError) return;  // as can_send()
  if (Status status = bulk_.pump(*qp_, kTagBulk); !status.ok()) fail(status);
}

}  // namespace rrpc::endpoint
