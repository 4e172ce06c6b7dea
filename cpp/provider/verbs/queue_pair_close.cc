// How a queue pair dies: what was posted goes out, the peer is told, the rest is flushed.
#include <algorithm>

#include "provider/verbs/bring_up.h"
#include "provider/verbs/completion_queue.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/shared_receive_queue.h"
#include "provider/verbs/work_ids.h"

namespace rrpc::provider::verbs {

static constexpr TimeNs kLinger = 1 * kSecond;
static constexpr TimeNs kLingerBeforeDestruction = 100 * kMillisecond;
// A device that has given nothing back for so long gives the rest back by being rid of the queue pair.
static constexpr TimeNs kFlushPatience = 100 * kMillisecond;
static constexpr TimeNs kGiveBack = 5 * kMillisecond;
// From the end of a connection to the event that tells of it: some 0.1 ms, and more where the cores are busy.
static constexpr TimeNs kReasonPatience = 250 * kMillisecond;

// The event that says what ended the connection comes before or after the flush that it causes. What failed is kept
// back meanwhile; what came before is not.
void VerbsQueuePair::ask_why(const Status& otherwise) {
  if (state_ != QueuePairState::kConnected || asking_why()) return;
  flush_held();
  asking_until_ = now_ns() + kReasonPatience;
  otherwise_ = otherwise;
}

void VerbsQueuePair::die(const Status& reason) {
  asking_until_ = 0;
  if (ending_ == Ending::kFlushing || ending_ == Ending::kFinished) return;
  if (ending_ == Ending::kLingering) return begin_flush(farewell_);
  state_ = QueuePairState::kError;
  error_ = reason;
  begin_flush(reason.message());
}

// The device takes none any more.
void VerbsQueuePair::flush_held() {
  for (const ibv_send_wr& request : chain_) sends_.fail(sequence_of(request.wr_id));
  chain_.clear();
  chain_sges_.clear();
}

void VerbsQueuePair::begin_flush(const std::string& reason) {
  flush_held();
  ending_ = Ending::kFlushing;
  flush_progress_ = now_ns();
  if (connector_->phase() != Connector::Phase::kEnded) connector_->disconnect(reason);
  // The peer's end of the connection alone flushes nothing on some adapters.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(handle_, &attributes, IBV_QP_STATE);
}

bool VerbsQueuePair::flushed() const {
  if (!sends_.all_done() || !receives_.all_done()) return false;
  const bool tells =
      shared_receives_ != nullptr && was_connected_ && adapter_.tells_last_receive() && !adapter_.failed();
  return !tells || last_receive_taken_.load(std::memory_order_acquire);
}

void VerbsQueuePair::disconnect(const std::string& reason) {
  ring();
  if (state_ == QueuePairState::kError) return;
  const bool sending = state_ == QueuePairState::kConnected && !sends_.all_done();
  state_ = QueuePairState::kError;
  asking_until_ = 0;
  error_ = unavailable(reason);
  farewell_ = reason;
  if (!sending) return begin_flush(reason);
  ending_ = Ending::kLingering;
  linger_deadline_ = now_ns() + kLinger;
  if (unsignalled_run_ > 0) post_marker();
}

// Nothing tells when an unsignalled request is done, but what is signalled after it: a WRITE of no bytes, which needs
// no key.
void VerbsQueuePair::post_marker() {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  (void)post_internal(request, {.opcode = Opcode::kWrite, .kind = SendEntry::Kind::kMarker}, true);
}

void VerbsQueuePair::advance_ending(TimeNs now) {
  switch (ending_) {
    case Ending::kNone:
    case Ending::kFinished:
      return;
    case Ending::kLingering:
      if (sends_.all_done() || now >= linger_deadline_) begin_flush(farewell_);
      return;
    case Ending::kFlushing:
      if (connector_->unanswered()) return;  // Soft-iWARP gives a peer ten seconds
      if (flushed()) {
        finish();
        drop_waiting_receives();
      } else if (now - flush_progress_ > kFlushPatience) {
        give_up_flush();
      }
      return;
  }
}

void VerbsQueuePair::finish() {
  (void)stash_completions();
  exposures_->end_closing();
  ending_ = Ending::kFinished;
}

// Once the queue pair is destroyed the device touches none of the buffers any more, so that they can be given back.
void VerbsQueuePair::give_up_flush() {
  finish();
  take_down();
  sends_.flush();
  (void)stash_completions();
  while (!receives_.empty()) {
    stash_.push_back({.wr_id = receives_.pop(),
                      .opcode = Opcode::kReceive,
                      .status = WcStatus::kFlushed,
                      .length_bytes = 0,
                      .qp_number = number()});
  }
}

// What was posted before the end should not be lost because its owner is in a hurry.
void VerbsQueuePair::linger_before_destruction() {
  const TimeNs deadline = std::min(linger_deadline_, now_ns() + kLingerBeforeDestruction);
  while (ending_ == Ending::kLingering) {
    (void)stash_completions();
    if (shared_receives_ == nullptr) stash_.clear();
    const TimeNs now = now_ns();
    if (now >= deadline) linger_deadline_ = now;
    advance_ending(now);
    cpu_relax();
  }
}

// Messages that came and were not polled hold receives of the shared queue.
void VerbsQueuePair::give_back_shared_receives() {
  if (shared_receives_ == nullptr) return;
  const TimeNs deadline = now_ns() + kGiveBack;
  bool was_flushed = false;  // before the last look
  do {
    was_flushed = flushed();
    (void)stash_completions();
    for (const Completion& completion : stash_) {
      if (completion.opcode == Opcode::kReceive) shared_receives_->take_back(completion.wr_id);
    }
    stash_.clear();
  } while (ending_ == Ending::kFlushing && !was_flushed && now_ns() < deadline);
}

// What is posted is flushed, which its sleepers wait for. (One that has nothing posted, with receives of a shared
// queue, finds out when it next looks: a caller after a second, others when they probe their peer.)
void VerbsQueuePair::doom(const Status& reason, bool vague) {
  {
    std::lock_guard lock(doom_mutex_);
    if (doomed_.load(std::memory_order_relaxed)) return;
    doom_reason_ = reason;
    doom_is_vague_ = vague;
    doomed_.store(true, std::memory_order_release);
  }
  bring_to_error(handle_);
}

void VerbsQueuePair::obey_doom() {
  std::lock_guard lock(doom_mutex_);
  if (doom_is_vague_ && state_ == QueuePairState::kConnected) return ask_why(doom_reason_);
  die(doom_reason_);
}

}  // namespace rrpc::provider::verbs
