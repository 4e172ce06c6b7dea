#include "provider/tcp/send_queue.h"

#include <algorithm>

namespace rrpc::provider::tcp {

void SendRequest::take_ownership() {
  owned.reserve(length_bytes);
  for (iovec& part : part_span()) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    owned.insert(owned.end(), bytes, bytes + part.iov_len);
    part.iov_base = owned.data() + owned.size() - part.iov_len;
  }
}

void SendQueue::push(const WorkRequest& request) {
  SendRequest& slot = requests_.push_slot();
  slot.wr_id = request.wr_id;
  slot.opcode = request.opcode;
  slot.state = SendRequest::State::kPosted;
  slot.failure = WcStatus::kFlushed;
  slot.signalled = request.signalled;
  slot.inline_data = request.inline_data;
  slot.rkey = request.rkey;
  slot.remote_address = request.remote_address;
  slot.push_count = static_cast<uint16_t>(std::min<size_t>(request.pushes.size(), kPushesMax));
  pushes_.insert(pushes_.end(), request.pushes.begin(), request.pushes.begin() + slot.push_count);
  slot.part_count = 0;
  slot.length_bytes = 0;
  for (const Sge& sge : request.sges) {
    if (!request.inline_data && (sge.region == nullptr || !sge.region->contains(sge.address, sge.length_bytes))) {
      slot.failure = WcStatus::kLocalProtection;
    }
    slot.parts[slot.part_count++] = {sge.address, sge.length_bytes};
    slot.length_bytes += sge.length_bytes;
  }
}

void SendQueue::advance() {
  pushes_.erase(pushes_.begin(), pushes_.begin() + next_to_write()->push_count);
  ++unwritten_;
}

SendRequest* SendQueue::find_tag(uint32_t tag) {
  const uint32_t offset = tag - static_cast<uint32_t>(first_);
  return offset < requests_.size() ? &requests_[offset] : nullptr;
}

void SendQueue::pop() {
  std::vector<std::byte>().swap(front().owned);
  requests_.pop();
  ++first_;
  if (unwritten_ < first_) unwritten_ = first_;
}

}  // namespace rrpc::provider::tcp
