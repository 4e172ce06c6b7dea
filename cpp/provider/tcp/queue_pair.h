// One queue pair on one TCP socket.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "provider/exposure_table.h"
#include "provider/provider.h"
#include "provider/socket.h"
#include "provider/tcp/completion_queue.h"
#include "provider/tcp/frame.h"
#include "provider/tcp/input.h"
#include "provider/tcp/output.h"
#include "provider/tcp/send_queue.h"
#include "provider/tcp/wire.h"

namespace rrpc::provider::tcp {

class TcpQueuePair final : public QueuePair, public Pollable {
 public:
  // The client's end, yet to be dialled, and the server's, on an accepted socket; `tls` has shaken hands on it.
  TcpQueuePair(TcpCompletionQueue& cq, const QueuePairConfig& config, Dialler dialler, const std::string& target);
  TcpQueuePair(TcpCompletionQueue& cq, const QueuePairConfig& config, UniqueFd socket,
               std::unique_ptr<TlsChannel> tls = nullptr);
  ~TcpQueuePair() override;

  QueuePairState state() const override;
  const Status& error() const override { return error_; }
  const QueuePairLimits& limits() const override { return limits_; }
  Status start(Bytes private_data) override;
  Bytes peer_private_data() const override;
  std::string peer_description() const override { return peer_; }
  std::string local_description() const override { return local_; }
  std::string_view bulk_method() const override { return "socket"; }
  const PeerIdentity& peer_identity() const override { return identity_; }
  std::string_view protection() const override { return protection_; }
  std::optional<ExportedKey> export_key(std::string_view label) const override;
  Status post_receive(const ReceiveRequest& request) override;
  std::byte* reserve_message(uint32_t length_bytes) override;
  bool commit_message(bool more, uint64_t wr_id) override;
  bool holds() const override { return held_ > 0; }
  void ring() override;
  Status post_send(std::span<const WorkRequest> requests) override;
  Result<uint32_t> expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override;
  bool revoke(uint32_t rkey) override;
  void disconnect(const std::string& reason) override;

  int fd() const override { return socket_.get(); }
  bool want_write() const override { return want_write_; }
  void drive() override;
  void completion_taken(Opcode opcode) override;

 private:
  static constexpr uint32_t kBulkBytesMin = 32 << 10;

  enum class Phase : uint8_t { kInit, kDialling, kSecuring, kSettingUp, kUp, kDead };

  // What the peer is told when the queue pair dies.
  struct Farewell {
    enum class Kind : uint8_t {
      kNone,     // the socket is dead, or the peer has said its own farewell
      kQuiet,    // only what was queued before
      kGoodbye,  // and why
      kNak,      // and that its request was refused
    };
    Kind kind = Kind::kNone;
    WcStatus refusal = WcStatus::kSuccess;
    uint32_t tag = 0;
  };
  // A READ of the peer that waits for its response.
  struct PendingResponse {
    uint32_t tag = 0;
    uint32_t rkey = 0;
    uint32_t length_bytes = 0;
    std::byte* address = nullptr;
  };

  // A PUSH frame that is being received.
  struct Push {
    Push() = default;
    Push(uint64_t address, uint64_t length_bytes) : at(address), left_bytes(length_bytes) {}
    uint64_t at = 0;                  // in the peer's memory, of the next byte without a place
    uint64_t left_bytes = 0;          // for which there may yet be one
    std::optional<uint64_t> reading;  // the READ into whose memory it goes just now
    bool waits = false;               // until the next poll, for a READ
  };

  bool live() const { return phase_ != Phase::kDead; }

  // queue_pair.cc
  void dial_next();
  void drive_dialling();
  void begin_securing();
  void drive_securing();
  void begin_setup_exchange();
  void note_secured();
  Wire wire() const { return {socket_.get(), tls_.get()}; }
  Status check_request(const WorkRequest& request) const;
  bool in_use_by_peer(uint32_t rkey);
  void complete_send(SendRequest& request, WcStatus status);
  void complete_receive(WcStatus status, uint32_t length_bytes);
  void complete_done();

  // queue_pair_close.cc
  void fail(Status status, Farewell farewell);
  void fail_protocol(Status status);
  void refuse(const FrameHeader& header, WcStatus refusal, Status why);
  void say_farewell(const Farewell& farewell, bool was_up);
  bool collect_unsent(std::vector<std::byte>& rest);
  void flush_posted();

  // queue_pair_input.cc
  void read_input();
  void end_of_input(const ReadOutcome& outcome);
  bool bulk_expected();
  void parse_input();
  bool begin_next_frame();
  void begin_frame();
  void begin_setup();
  void begin_send();
  void begin_read_request();
  void begin_read_response();
  void begin_write();
  void land_control();
  void finish_frame();
  void finish_setup();
  void finish_nak();
  std::string reason_given() const;
  void finish_write_ack();

  // queue_pair_push.cc
  size_t pushes_for(std::span<const RemoteRange> ranges);
  void push_ranges(std::span<const RemoteRange> ranges);
  void note_asked_for(uint32_t rkey);
  bool may_be_pushed(const SendRequest& request) const;
  bool pushing() const { return frame_open_ && frame_.type == FrameType::kPush; }
  void begin_push();
  bool continue_push();
  bool ask_for_held();

  // queue_pair_output.cc
  void flush_output();
  void refill();
  bool push_request();
  void write_request(SendRequest& request, uint64_t sequence, std::span<const iovec> parts, size_t pushes = 0);
  bool push_response();
  void push_setup();
  void retire_written();
  bool may_stage() const;
  void set_want_write(bool want_write) { want_write_ = want_write; }

  TcpCompletionQueue& cq_;
  const bool client_;
  Phase phase_ = Phase::kInit;
  Status error_;
  QueuePairLimits limits_;
  std::string peer_;
  std::string local_;
  std::vector<std::byte> private_data_;
  std::vector<std::byte> peer_private_data_;

  Dialler dialler_;
  std::shared_ptr<TlsContext> tls_context_;  // of a client
  std::string dialled_;
  UniqueFd socket_;
  std::unique_ptr<TlsChannel> tls_;  // null: bytes go in clear
  PeerIdentity identity_;
  std::string protection_;
  bool want_write_ = false;
  int write_errno_ = 0;
  bool failing_ = false;

  Ring<ReceiveRequest> receives_;
  uint32_t receives_outstanding_ = 0;  // posted, completion not yet polled
  SendQueue sends_;
  uint32_t sends_outstanding_ = 0;
  Ring<uint64_t> reads_in_flight_;  // sequences
  Ring<uint64_t> writes_in_flight_;
  uint32_t reads_in_flight_max_ = 0;

  std::vector<uint64_t> reads_held_;  // not asked for, since their bytes may be on their way; sequences
  uint16_t pushes_due_ = 0;           // announced by the last SEND
  uint64_t push_room_bytes_ = 0;      // of those
  bool news_in_this_poll_ = false;    // a message, or the end of a READ that was pushed
  Push push_;

  std::array<uint32_t, 16> pushed_lately_{};  // rkeys
  size_t pushed_count_ = 0;
  uint32_t pause_pushes_ = 0;  // for so many messages

  ExposureTable exposures_;
  Ring<PendingResponse> responses_;
  uint32_t acks_pending_ = 0;
  bool response_turn_ = false;

  Output output_;
  uint32_t reserved_bytes_ = 0;  // by reserve_message()
  uint32_t held_ = 0;            // messages that wait for another one
  Input input_;
  const std::byte* place_ = nullptr;  // of the message of the open SEND frame, in input_; null: in its receive
  FrameHeader frame_;                 // being received, if frame_open_
  bool frame_open_ = false;
  std::array<std::byte, kControlBodyBytesMax> control_body_{};
};

}  // namespace rrpc::provider::tcp
