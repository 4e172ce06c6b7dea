// From the device's completions to the user's.
#include <algorithm>
#include <array>

#include "provider/verbs/completion_queue.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/shared_receive_queue.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {

static constexpr size_t kBatch = 16;

// Of a connection at which nothing but messages happens.
size_t VerbsQueuePair::poll_calm(std::span<Completion> out) {
  give_receives();
  const size_t count = poll_device(out);
  if (count == 0) ring();
  return count;
}

size_t VerbsQueuePair::poll_whatever(std::span<Completion> out, bool look) {
  const TimeNs now = now_ns();
  if (doomed_.load(std::memory_order_acquire)) obey_doom();
  if (connected()) give_receives();
  const bool awaits_news = state_ == QueuePairState::kConnecting || asking_why();
  if ((look || awaits_news) && state_ != QueuePairState::kInit && handle_ != nullptr && !holds_device()) {
    connector_->drive();
    follow_connector();
  }
  if (asking_why() && now >= asking_until_) die(otherwise_);
  if (ending_ != Ending::kNone) advance_ending(now);
  if (state_ == QueuePairState::kInit) return 0;
  if (state_ == QueuePairState::kConnecting) {  // the peer's first message may overtake the news that it is connected
    (void)stash_completions();
    return 0;
  }
  size_t count = stash_.empty() || asking_why() ? 0 : take_stash(out);
  if (count < out.size()) count += poll_device(out.subspan(count));
  if (count == 0) ring();
  return count;
}

size_t VerbsQueuePair::take_stash(std::span<Completion> out) {
  const size_t count = std::min(out.size(), stash_.size());
  std::copy_n(stash_.begin(), count, out.begin());
  stash_.erase(stash_.begin(), stash_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

// Until `out` is full or the device has no more: fewer than asked for means that the queue has run dry.
size_t VerbsQueuePair::poll_device(std::span<Completion> out) {
  size_t count = take_sends(out);
  if (completions_ == nullptr) return count;
  std::array<ibv_wc, kBatch> polled;
  while (count < out.size()) {
    const size_t wanted = std::min(out.size() - count, kBatch);
    const int polled_count = ibv_poll_cq(completions_, static_cast<int>(wanted), polled.data());
    if (polled_count <= 0) break;
    polled_since_request_ = true;
    for (const ibv_wc& completion : std::span(polled).first(static_cast<size_t>(polled_count))) {
      if (!digest(completion, out[count])) continue;
      if (out[count].status != WcStatus::kSuccess && asking_why()) [[unlikely]]
        stash_.push_back(out[count]);
      else
        ++count;
    }
    count += take_sends(out.subspan(count));
    if (ending_ == Ending::kFlushing) flush_progress_ = now_ns();
    if (static_cast<size_t>(polled_count) < wanted) break;
  }
  return count;
}

// Of the send queue, what is done, in the order posted.
size_t VerbsQueuePair::take_done_sends(std::span<Completion> out) {
  size_t count = 0;
  for (const SendEntry* entry = sends_.front_done(); entry != nullptr; entry = sends_.front_done()) {
    if (entry->status != WcStatus::kSuccess && asking_why()) break;
    if (entry->to_be_told()) {
      if (count == out.size()) break;
      out[count++] = {.wr_id = entry->wr_id,
                      .opcode = entry->opcode,
                      .status = entry->status,
                      .length_bytes = entry->length_bytes,
                      .qp_number = number()};
    }
    sends_.pop();
  }
  exposures_->post_deferred();  // there is room for them now
  return count;
}

// All that the device has. False if it had nothing.
bool VerbsQueuePair::stash_completions() {
  std::array<Completion, kBatch> completions;
  const uint32_t room_before = sends_.internal_count() + sends_.user_count();
  size_t count = 0;
  size_t total = 0;
  do {
    count = poll_device(completions);
    total += count;
    stash_.insert(stash_.end(), completions.begin(), completions.begin() + static_cast<std::ptrdiff_t>(count));
  } while (count == completions.size());
  return total > 0 || sends_.internal_count() + sends_.user_count() < room_before;
}

// Gives the completion of a receive; sends are noted in their ledger.
bool VerbsQueuePair::digest(const ibv_wc& completion, Completion& receive) {
  const uint64_t sequence = sequence_of(completion.wr_id);
  if (!is_send(completion.wr_id)) return receive = digest_receive(sequence, completion), true;
  if (completion.wr_id == kConnectorWorkRequest)
    connector_->completed(completion);
  else
    digest_send(sequence, completion);
  return false;
}

void VerbsQueuePair::digest_send(uint64_t sequence, const ibv_wc& completion) {
  WcStatus status = wc_status(completion.status);
  // Adapters call it by several names; flushed with the rest it was if the queue pair had died before its turn.
  const bool ran = status != WcStatus::kSuccess && (status != WcStatus::kFlushed || alive());
  if (ran && sends_.names_strange_memory(sequence)) status = WcStatus::kLocalProtection;
  const SendEntry& entry = sends_.complete(sequence, status);
  if (entry.kind == SendEntry::Kind::kInvalidate && status == WcStatus::kSuccess) {
    exposures_->on_closed(static_cast<uint32_t>(entry.wr_id));
  }
  if (entry.kind == SendEntry::Kind::kBind && binds_under_way_ > 0) --binds_under_way_;
  if (status != WcStatus::kSuccess) on_failure(status, completion);
}

Completion VerbsQueuePair::digest_receive(uint64_t sequence, const ibv_wc& completion) {
  WcStatus status = wc_status(completion.status);
  // Soft-RoCE's name for a message that is longer than its receive.
  if (completion.status == IBV_WC_LOC_QP_OP_ERR && !adapter_.iwarp()) status = WcStatus::kLocalLength;
  const uint64_t wr_id = shared_receives_ != nullptr ? shared_receives_->complete(sequence) : receives_.pop();
  if (status != WcStatus::kSuccess) on_failure(status, completion);
  if (status == WcStatus::kSuccess && (completion.wc_flags & adapter_.invalidation_flag()) != 0) [[unlikely]]
    note_invalidated(completion.invalidated_rkey);
  return {.wr_id = wr_id,
          .opcode = Opcode::kReceive,
          .status = status,
          .length_bytes = status == WcStatus::kSuccess ? completion.byte_len : 0,
          .qp_number = number()};
}

// An adapter lets through only what is open to this queue pair; Soft-RoCE any window of its own.
void VerbsQueuePair::note_invalidated(uint32_t rkey) {
  if (exposures_->on_closed_by_peer(rkey) || !connected()) return;
  die(Status::protocol_error("the peer invalidated a key that isn't open to it"));
}

static Status failure_of(WcStatus status, const ibv_wc& completion) {
  switch (status) {
    case WcStatus::kFlushed:
      return unavailable("the connection was lost");
    case WcStatus::kLocalLength:
      return failed_precondition("a message was longer than the receive that it landed in");
    case WcStatus::kLocalProtection:
      return failed_precondition("a request names memory outside its region");
    case WcStatus::kRemoteAccess:
      return permission_denied("refused by the peer: its memory isn't open for this READ or WRITE");
    case WcStatus::kRemoteOperation:
      return failed_precondition("refused by the peer: it could not carry out the request");
    case WcStatus::kRnrRetryExceeded:
      return failed_precondition("refused by the peer: it had no receive posted for the message");
    case WcStatus::kRetryExceeded:
      return unavailable("the peer doesn't answer any more (retries exceeded)");
    default:
      return internal_error(std::string("the adapter failed a request: ") + ibv_wc_status_str(completion.status) +
                            " (vendor error " + std::to_string(completion.vendor_err) + ")");
  }
}

void VerbsQueuePair::on_failure(WcStatus status, const ibv_wc& completion) {
  // kFatal: of a connection that is cut while it sends, Soft-iWARP says no more than that.
  if (status != WcStatus::kFlushed && status != WcStatus::kFatal) return die(failure_of(status, completion));
  if (doomed_.load(std::memory_order_acquire)) obey_doom();
  if (state_ == QueuePairState::kConnected) return ask_why(failure_of(status, completion));
  if (status == WcStatus::kFatal) die(failure_of(status, completion));
}

}  // namespace rrpc::provider::verbs
