// A reliable-connected queue pair: posting, completing, exposing. How it is connected is its Connector's business.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "provider/provider.h"
#include "provider/verbs/connector.h"
#include "provider/verbs/exposures.h"
#include "provider/verbs/receive_ledger.h"
#include "provider/verbs/send_ledger.h"

namespace rrpc::provider::verbs {

class VerbsCompletionQueue;
class VerbsSharedReceiveQueue;

class VerbsQueuePair final : public QueuePair, private InternalWork {
 public:
  // With queues as deep as `config` asks and the adapter allows (limits() says), in kInit.
  static Result<std::unique_ptr<QueuePair>> create(CompletionQueue& cq, const QueuePairConfig& config,
                                                   std::unique_ptr<Connector> connector);
  ~VerbsQueuePair() override;

  QueuePairState state() const override { return state_; }
  const Status& error() const override { return error_; }
  const QueuePairLimits& limits() const override { return limits_; }
  Status start(Bytes private_data) override;
  Bytes peer_private_data() const override;
  std::string peer_description() const override { return connector_->peer_description(); }
  std::string local_description() const override { return connector_->local_description(); }
  EndNames end_names() const override;
  std::map<std::string, std::string> fabric_marks() const override;
  std::string_view bulk_method() const override { return "RDMA"; }
  Status post_receive(const ReceiveRequest& request) override { return post_receives({&request, 1}); }
  Status post_receives(std::span<const ReceiveRequest> requests) override;
  bool post_again(uint64_t wr_id) override {
    return state_ == QueuePairState::kConnected && receives_.push_again(wr_id);
  }
  std::byte* reserve_message(uint32_t length_bytes) override;
  bool commit_message(bool more, uint64_t wr_id) override;
  Status post_send(std::span<const WorkRequest> requests) override;
  bool holds() const override { return !chain_.empty(); }
  void ring() override;
  Result<uint32_t> expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override;
  void tell_exposed() override { tells_exposed_ = true; }
  bool wait_for_exposures() override;
  bool revoke(uint32_t rkey) override;
  bool revoking(uint32_t rkey) const override { return exposures_->closing(rkey); }
  ExposureKind exposure_kind() const override { return exposures_->kind(); }
  Status adopt(const MemoryRegion& region) override;
  void disconnect(const std::string& reason) override;
  bool holds_device() const override { return ending_ == Ending::kFinished && handle_ != nullptr; }
  bool lost_receives() const override {
    return shared_receives_ != nullptr && overrun_.load(std::memory_order_acquire);
  }
  void release_device() override {
    if (holds_device()) take_down();
  }

  // From the thread that watches the adapter's events: fails it with `reason` and moves it to the error state, which
  // wakes whoever sleeps on its completion channel. vague: its connector may know a better reason.
  void doom(const Status& reason, bool vague);
  // From the same: it has taken its last receive of a shared queue.
  void note_last_receive() { last_receive_taken_.store(true, std::memory_order_release); }
  void note_overrun() { overrun_.store(true, std::memory_order_release); }
  ibv_qp* handle() const { return handle_; }
  ibv_cq* completions() const { return completions_; }
  uint8_t port() const { return connector_->port(); }

  // For its completion queue. `look`: also at what costs system calls.
  size_t poll(std::span<Completion> out, bool look) {
    const bool calm = state_ == QueuePairState::kConnected && !asking_why() && stash_.empty() &&
                      !doomed_.load(std::memory_order_acquire);
    return calm && !look ? poll_calm(out) : poll_whatever(out, look);
  }
  void on_notified();
  void request_notification();
  void append_wait_handles(std::vector<WaitHandle>& out) const;
  // Completions were polled since a notification was requested: it may have come.
  bool notification_is_due() const { return notification_requested_ && polled_since_request_; }
  bool lingering() const { return ending_ == Ending::kLingering || ending_ == Ending::kFlushing; }

 private:
  // What is left to do once the state is kError.
  enum class Ending : uint8_t {
    kNone,
    kLingering,  // what was posted before disconnect() is being sent
    kFlushing,   // the queue pair is in the error state and gives back what was posted
    kFinished,   // the device touches nothing any more
  };

  VerbsQueuePair(VerbsCompletionQueue& cq, const QueuePairConfig& config, std::unique_ptr<Connector> connector,
                 const ibv_port_attr& port);

  // queue_pair_setup.cc
  Status set_up();
  Status create_completions();
  Status create_handle();
  void take_down();

  // queue_pair.cc
  void establish();
  void follow_connector();
  Status check_request(const WorkRequest& request) const;
  Status append(std::span<const WorkRequest> requests);
  Status append_request(const WorkRequest& request);
  Status append_sge(const Sge& sge, bool inline_data, bool& own_error);
  void keep_inline_bytes(size_t first_request);
  Status post_flushed(std::span<const WorkRequest> requests);
  bool taken_all_the_same(const ibv_send_wr* refused);
  Status post_chain(size_t held_count);
  Status give_requests(std::span<ibv_send_wr> linked, bool promised);
  bool signal_next(bool wanted);
  bool internal_room_used_up() const { return sends_.internal_count() >= internal_depth_ - 1; }
  Status post_internal(ibv_send_wr& request, SendEntry entry, bool signalled);
  Status post_bind(ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info& bind) override;
  Status post_invalidate(uint32_t rkey) override;
  Status post_barrier(uint32_t rkey) override;
  bool alive() const override { return connected() || ending_ == Ending::kLingering; }
  bool connected() const override { return state_ == QueuePairState::kConnected && !asking_why(); }

  // queue_pair_messages.cc
  Result<PostedReceive> resolve(const ReceiveRequest& request);
  Status give_receives_now();
  // To the device, those that wait. Where it takes none the queue pair has died, and ask_why() finds out of what.
  void give_receives() {
    if (receives_.waiting_count() > 0) give_receives_or_ask_why();
  }
  void give_receives_or_ask_why();
  void drop_waiting_receives();
  void make_held_places();
  std::byte* held_place(size_t index) { return held_bytes_.data() + index * limits_.inline_bytes_max; }

  // queue_pair_completions.cc
  size_t poll_calm(std::span<Completion> out);
  size_t poll_whatever(std::span<Completion> out, bool look);
  size_t take_stash(std::span<Completion> out);
  size_t poll_device(std::span<Completion> out);
  size_t take_sends(std::span<Completion> out) { return sends_.front_done() != nullptr ? take_done_sends(out) : 0; }
  size_t take_done_sends(std::span<Completion> out);
  bool stash_completions();
  bool digest(const ibv_wc& completion, Completion& receive);
  void digest_send(uint64_t sequence, const ibv_wc& completion);
  Completion digest_receive(uint64_t sequence, const ibv_wc& completion);
  void note_invalidated(uint32_t rkey);
  void on_failure(WcStatus status, const ibv_wc& completion);

  // queue_pair_close.cc
  void flush_held();
  void ask_why(const Status& otherwise);
  bool asking_why() const { return asking_until_ != 0; }
  void die(const Status& reason);
  void begin_flush(const std::string& reason);
  // Whether the device has given back all that was posted, and takes no more receives of a shared queue.
  bool flushed() const;
  void advance_ending(TimeNs now);
  void finish();
  void give_up_flush();
  void obey_doom();
  void post_marker();
  void linger_before_destruction();
  void give_back_shared_receives();

  VerbsCompletionQueue& cq_;
  std::unique_ptr<Connector> connector_;
  Adapter& adapter_;
  const QueuePairConfig config_;
  const uint32_t fork_generation_;
  VerbsSharedReceiveQueue* const shared_receives_;
  QueuePairLimits limits_;
  uint32_t internal_depth_ = 0;
  std::shared_ptr<ProtectionDomain> domain_;
  ibv_cq* completions_ = nullptr;
  ibv_qp* handle_ = nullptr;
  std::unique_ptr<Exposures> exposures_;

  QueuePairState state_ = QueuePairState::kInit;
  Ending ending_ = Ending::kNone;
  bool was_connected_ = false;
  Status error_;
  std::string farewell_;
  TimeNs asking_until_ = 0;  // the queue pair is dead, and nothing has said why
  Status otherwise_;         // the reason if nothing does
  TimeNs linger_deadline_ = 0;
  TimeNs flush_progress_ = 0;

  SendLedger sends_;
  ReceiveLedger receives_;
  uint64_t receive_region_id_ = 0;  // of the region whose lkey is cached; 0: none
  uint32_t receive_lkey_ = 0;
  bool tells_exposed_ = false;
  uint32_t binds_under_way_ = 0;  // since then
  uint32_t unsignalled_run_ = 0;  // requests since the last of which the device tells
  std::deque<Completion> stash_;  // taken from the device before anyone polled
  // Requests in the ledger that go to the device with the next call, and their elements one behind the other: between
  // calls those that wait for another one.
  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> chain_sges_;
  std::vector<ibv_send_wr> given_;  // the same, while the device is given them
  std::vector<ibv_sge> given_sges_;
  static constexpr size_t kHeldMax = 16;
  std::vector<std::byte> held_bytes_;  // places for the bytes of those that go inline, one each
  uint32_t reserved_bytes_ = 0;        // by reserve_message()
  ibv_send_wr message_{};              // one that goes alone
  ibv_sge message_sge_{};
  bool notification_requested_ = false;
  bool polled_since_request_ = false;
  uint32_t notifications_unacknowledged_ = 0;

  std::atomic<bool> last_receive_taken_{false};
  std::atomic<bool> overrun_{false};  // its completion queue
  std::atomic<bool> doomed_{false};
  std::mutex doom_mutex_;
  Status doom_reason_;
  bool doom_is_vague_ = false;
};

}  // namespace rrpc::provider::verbs
