// What goes out: messages under credits, transfers.
#include <algorithm>
#include <array>
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

static constexpr size_t kMessagePartsMax = 8;

void Endpoint::return_credits() {
  if (owes_credits() && can_send(kCreditType)) send(kCreditType, {});
}

bool Endpoint::can_send(uint8_t type) const {
  if (!established_ || failed() || sends_unretired_ >= send_slot_count_ || send_buffers_.used_up()) return false;
  // A dead queue pair is found by progress(), once what came before its end is delivered.
  if (qp_->state() == QueuePairState::kError) return false;
  switch (class_of(type)) {
    case MessageClass::kData:
      // The control reserve holds in the own send queue too.
      return send_data_.open() && sends_unretired_ + kControlSlots < send_slot_count_;
    case MessageClass::kControl:
      return send_control_.open();
    case MessageClass::kCredit:
      return true;
  }
  return false;
}

void Endpoint::send(uint8_t type, std::span<const Bytes> parts, Pushes pushes) {
  RRPC_CHECK(can_send(type), "no send without a credit");
  RRPC_CHECK(parts.size() < kMessagePartsMax, "too many message parts");
  MessageHeader header;
  header.type = type;
  header.epoch = epoch_;
  header.data_granted = receive_data_.granted();
  header.control_granted = receive_control_.granted();
  std::array<Sge, kMessagePartsMax> sges;
  size_t sge_count = 1;
  size_t length = sizeof(header);
  for (const Bytes part : parts) {
    if (part.empty()) continue;
    sges[sge_count++] = {const_cast<std::byte*>(part.data()), static_cast<uint32_t>(part.size()), nullptr};
    length += part.size();
  }
  RRPC_CHECK(length <= body_bytes_max_ + sizeof(header), "a message larger than a slot");
  header.body_bytes = static_cast<uint32_t>(length - sizeof(header));
  sges[0] = {reinterpret_cast<std::byte*>(&header), sizeof(header), nullptr};
  if (class_of(type) == MessageClass::kData) send_data_.take();
  if (class_of(type) == MessageClass::kControl) send_control_.take();
  receive_data_.announced();
  receive_control_.announced();
  tally(&Counters::messages_sent);
  tally(&Counters::bytes_inline_sent, header.body_bytes);
  post_message({sges.data(), sge_count}, length, pushes);
}

void Endpoint::post_message(std::span<const Sge> inline_sges, size_t length_bytes, Pushes pushes) {
  WorkRequest request;
  request.pushes = pushes;
  Sge slot_sge;
  SendBuffers::Buffer buffer;
  if (length_bytes <= qp_->limits().inline_bytes_max && inline_sges.size() <= qp_->limits().sge_count_max) {
    request.sges = inline_sges;
    request.inline_data = true;
  } else {
    buffer = send_buffers_.take();
    std::byte* target = buffer.memory;
    slot_sge = {target, static_cast<uint32_t>(length_bytes), buffer.region};
    for (const Sge& sge : inline_sges) {
      std::memcpy(target, sge.address, sge.length_bytes);
      target += sge.length_bytes;
    }
    request.sges = {&slot_sge, 1};
  }
  send_buffers_.posted(buffer);
  ++sends_unretired_;
  ++sends_since_signal_;
  // One signalled send retires all before it; often enough that a full queue can't be all unsignalled.
  request.signalled =
      sends_since_signal_ >= std::max(1u, send_slot_count_ / 4) || (buffer.memory != nullptr && send_buffers_.scarce());
  request.wr_id = kTagSend | sends_since_signal_;
  if (request.signalled) sends_since_signal_ = 0;
  if (Status status = qp_->post_send({&request, 1}); !status.ok()) fail(status);
}

void Endpoint::start_transfer(uint64_t cookie, Opcode opcode, std::vector<TransferSegment> segments) {
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
