#include "provider/tcp/queue_pair.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

namespace rrpc::provider::tcp {

static constexpr uint32_t kInlineBytesMax = 64 << 10;

static uint32_t next_queue_pair_number() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

static std::string host_of(const std::string& address) {
  const Result<HostPort> parsed = parse_address(address);
  return parsed ? parsed->host : address;
}

static QueuePairLimits limits_for(const QueuePairConfig& config) {
  return {.send_depth = config.send_depth,
          .receive_depth = config.receive_depth,
          .sge_count_max = kSgeCountMax,
          .read_sge_count_max = kSgeCountMax,
          .read_depth = config.read_depth,
          .inline_bytes_max = kInlineBytesMax,
          .message_bytes_max = kMessageBytesMax};
}

TcpQueuePair::TcpQueuePair(TcpCompletionQueue& cq, const QueuePairConfig& config, Dialler dialler,
                           const std::string& target)
    : QueuePair(next_queue_pair_number()),
      cq_(cq),
      client_(true),
      limits_(limits_for(config)),
      peer_(target),
      dialler_(std::move(dialler)),
      tls_context_(config.tls),
      dialled_(host_of(target)),
      receives_(config.receive_depth),
      sends_(config.send_depth),
      reads_in_flight_(config.read_depth),
      writes_in_flight_(config.send_depth),
      responses_(config.read_depth) {
  cq_.register_queue_pair();
}

TcpQueuePair::TcpQueuePair(TcpCompletionQueue& cq, const QueuePairConfig& config, UniqueFd socket,
                           std::unique_ptr<TlsChannel> tls)
    : QueuePair(next_queue_pair_number()),
      cq_(cq),
      client_(false),
      limits_(limits_for(config)),
      peer_(peer_address(socket.get()).to_string()),
      local_(local_address(socket.get()).to_string()),
      socket_(std::move(socket)),
      tls_(std::move(tls)),
      receives_(config.receive_depth),
      sends_(config.send_depth),
      reads_in_flight_(config.read_depth),
      writes_in_flight_(config.send_depth),
      responses_(config.read_depth) {
  set_connection_options(socket_.get());
  if (tls_ != nullptr) note_secured();
  cq_.register_queue_pair();
}

TcpQueuePair::~TcpQueuePair() {
  disconnect("the queue pair was destroyed");
  cq_.forget(this);
}

QueuePairState TcpQueuePair::state() const {
  switch (phase_) {
    case Phase::kInit:
      return QueuePairState::kInit;
    case Phase::kDialling:
    case Phase::kSecuring:
    case Phase::kSettingUp:
      return QueuePairState::kConnecting;
    case Phase::kUp:
      return QueuePairState::kConnected;
    case Phase::kDead:
      break;
  }
  return QueuePairState::kError;
}

Bytes TcpQueuePair::peer_private_data() const { return peer_private_data_; }

Status TcpQueuePair::start(Bytes private_data) {
  if (phase_ == Phase::kDead) return error_;
  if (phase_ != Phase::kInit) return failed_precondition("the queue pair was started before");
  if (private_data.size() > kPrivateDataBytesMax) {
    return invalid_argument("private data of " + std::to_string(private_data.size()) + " bytes is over the limit of " +
                            std::to_string(kPrivateDataBytesMax));
  }
  private_data_.assign(private_data.begin(), private_data.end());
  if (client_) {
    dial_next();
    return error_;
  }
  phase_ = Phase::kSettingUp;  // the client speaks first
  cq_.attach(this);
  return {};
}

void TcpQueuePair::dial_next() {
  phase_ = Phase::kDialling;
  if (socket_) {
    cq_.detach(this);
    socket_.reset();
  }
  Result<UniqueFd> socket = dialler_.next();
  if (!socket) return fail(socket.status(), {});
  socket_ = std::move(socket).value();
  want_write_ = true;
  cq_.attach(this);
}

void TcpQueuePair::drive_dialling() {
  const int error_number = dialler_.progress(socket_.get());
  if (error_number == EINPROGRESS) return;
  if (error_number != 0) return dial_next();
  peer_ = peer_address(socket_.get()).to_string();
  local_ = local_address(socket_.get()).to_string();
  // A port of this host that nobody listens on can end up connected to itself.
  if (peer_ == local_) return dial_next();
  return tls_context_ == nullptr ? begin_setup_exchange() : begin_securing();
}

void TcpQueuePair::begin_securing() {
  phase_ = Phase::kSecuring;
  auto channel = tls_context_->open(dialled_);
  if (!channel) return fail(channel.status(), {});
  tls_ = std::move(*channel);
  drive_securing();
}

void TcpQueuePair::drive_securing() {
  const Result<bool> done = tls_->handshake(socket_.get());
  if (!done) return fail(done.status(), {.kind = Farewell::Kind::kQuiet});
  want_write_ = tls_->wants_write();
  if (!*done) return;
  note_secured();
  begin_setup_exchange();
}

void TcpQueuePair::note_secured() {
  identity_ = tls_->peer();
  protection_ = tls_->description();
}

std::optional<ExportedKey> TcpQueuePair::export_key(std::string_view label) const {
  if (tls_ == nullptr) return std::nullopt;
  return tls_->export_key(label);
}

void TcpQueuePair::begin_setup_exchange() {
  phase_ = Phase::kSettingUp;
  push_setup();
}

void TcpQueuePair::drive() {
  if (phase_ == Phase::kDialling) {
    drive_dialling();
    if (phase_ == Phase::kDialling) return;
  }
  if (phase_ == Phase::kSecuring) {
    drive_securing();
    if (phase_ == Phase::kSecuring) return;
  }
  news_in_this_poll_ = false;
  ring();
  if (std::exchange(push_.waits, false)) {
    refill();  // a READ that had to queue behind other output may be what it waits for
    if (live()) parse_input();
  }
  if (live() && !push_.waits) read_input();
  if (live()) flush_output();
}

Status TcpQueuePair::post_receive(const ReceiveRequest& request) {
  if (!live()) return error_;
  if (receives_outstanding_ >= limits_.receive_depth) {
    return resource_exhausted("the receive queue is full (" + std::to_string(limits_.receive_depth) + " receives)");
  }
  ++receives_outstanding_;
  receives_.push(request);
  return {};
}

Status TcpQueuePair::check_request(const WorkRequest& request) const {
  if (request.opcode == Opcode::kReceive) return invalid_argument("a receive posted to the send queue");
  if (request.sges.size() > kSgeCountMax) {
    return invalid_argument("a request of " + std::to_string(request.sges.size()) + " scatter/gather elements (limit " +
                            std::to_string(kSgeCountMax) + ")");
  }
  uint64_t length_bytes = 0;
  for (const Sge& sge : request.sges) length_bytes += sge.length_bytes;
  if (length_bytes > kMessageBytesMax) {
    return invalid_argument("a message of " + std::to_string(length_bytes) + " bytes (limit " +
                            std::to_string(kMessageBytesMax) + ")");
  }
  if (request.inline_data && (request.opcode != Opcode::kSend || length_bytes > kInlineBytesMax)) {
    return invalid_argument("inline data is for sends of up to " + std::to_string(kInlineBytesMax) + " bytes");
  }
  if (request.opcode == Opcode::kRead && reads_in_flight_max_ == 0) {
    return failed_precondition("a READ on a connection that has a read depth of 0");
  }
  return {};
}

Status TcpQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (!live()) return error_;
  if (phase_ != Phase::kUp) return failed_precondition("the queue pair isn't connected");
  if (requests.size() > limits_.send_depth - sends_outstanding_) {
    return resource_exhausted("the send queue is full (" + std::to_string(limits_.send_depth) + " requests)");
  }
  for (const WorkRequest& request : requests) RRPC_RETURN_IF_ERROR(check_request(request));
  const uint64_t first = sends_.end_sequence();
  for (const WorkRequest& request : requests) sends_.push(request);
  sends_outstanding_ += static_cast<uint32_t>(requests.size());
  if (!want_write_) flush_output();  // else the socket is full
  if (!live()) return {};
  for (uint64_t sequence = std::max(first, sends_.first_sequence()); sequence < sends_.end_sequence(); ++sequence) {
    SendRequest& request = sends_.at(sequence);
    if (request.inline_data && request.state != SendRequest::State::kDone) request.take_ownership();
  }
  return {};
}

void TcpQueuePair::complete_send(SendRequest& request, WcStatus status) {
  if (!request.signalled && status == WcStatus::kSuccess) {
    --sends_outstanding_;
    return;
  }
  cq_.push(this, {.wr_id = request.wr_id,
                  .opcode = request.opcode,
                  .status = status,
                  .length_bytes = request.length_bytes,
                  .qp_number = number()});
}

void TcpQueuePair::complete_receive(WcStatus status, uint32_t length_bytes) {
  const ReceiveRequest& receive = receives_.front();
  cq_.push(this,
           {.wr_id = receive.wr_id,
            .opcode = Opcode::kReceive,
            .status = status,
            .length_bytes = length_bytes,
            .qp_number = number(),
            .place = std::exchange(place_, nullptr)},
           receive.sge.address);
  receives_.pop();
}

void TcpQueuePair::complete_done() {
  while (!sends_.empty() && sends_.front().state == SendRequest::State::kDone) {
    complete_send(sends_.front(), WcStatus::kSuccess);
    sends_.pop();
  }
}

void TcpQueuePair::completion_taken(Opcode opcode) {
  --(opcode == Opcode::kReceive ? receives_outstanding_ : sends_outstanding_);
}

Result<uint32_t> TcpQueuePair::expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                      uint32_t access) {
  if (!live()) return error_;
  return exposures_.add(region, address, length_bytes, access);
}

bool TcpQueuePair::in_use_by_peer(uint32_t rkey) {
  if (frame_open_ && frame_.type == FrameType::kWrite && frame_.rkey == rkey) return true;
  for (size_t i = 0; i < responses_.size(); ++i) {
    if (responses_[i].rkey == rkey) return true;
  }
  for (size_t i = 0; i < output_.size(); ++i) {
    if (output_[i].source == OutFrame::Source::kResponse && output_[i].rkey == rkey) return true;
  }
  return false;
}

bool TcpQueuePair::revoke(uint32_t rkey) {
  if (!exposures_.remove(rkey) || !live()) return true;
  output_.own_pushed(rkey);
  if (!in_use_by_peer(rkey)) return true;
  // The rest of the transfer may not move any more, and the stream has no way to take back its beginning.
  fail(permission_denied("memory was revoked while the peer's READ or WRITE of it was under way"),
       {.kind = Farewell::Kind::kGoodbye});
  return true;
}

}  // namespace rrpc::provider::tcp
