#include "provider/sim/queue_pair.h"

#include <algorithm>

#include "provider/sim/device.h"

namespace rrpc::provider::sim {

static QueuePairLimits granted_limits(const QueuePairConfig& config, QueuePairLimits limits) {
  limits.send_depth = std::min(limits.send_depth, config.send_depth);
  limits.receive_depth = std::min(limits.receive_depth, config.receive_depth);
  limits.read_depth = std::min(limits.read_depth, config.read_depth);
  return limits;
}

SimQueuePair::SimQueuePair(Fabric& fabric, Host* host, SimCompletionQueue& cq, const QueuePairConfig& config,
                           std::string address)
    : QueuePair(fabric.add_queue_pair(this)),
      fabric_(fabric),
      host_(host),
      cq_(cq),
      address_(std::move(address)),
      limits_(granted_limits(config, fabric.plan.limits_max)),
      shared_receives_(static_cast<SimSharedReceiveQueue*>(config.shared_receives)),
      exposures_(fabric.rng.next()) {
  cq_.attach(number());
  if (shared_receives_ != nullptr) shared_receives_->attach();
}

SimQueuePair::~SimQueuePair() {
  close_down(cancelled("queue pair destroyed"));
  drop_exposures(true);
  for (const SendRequestPtr& request : held_sends_)
    for (const Piece& piece : request->pieces) unclaim(fabric_, piece);
  for (const ReceiveSlotPtr& slot : held_receives_) give_up(*slot);
  if (shared_receives_ != nullptr) shared_receives_->detach();
  cq_.detach(number());
  fabric_.remove_queue_pair(number());
}

void SimQueuePair::give_up(const ReceiveSlot& slot) {
  if (shared_receives_ == nullptr) return unclaim(fabric_, slot.piece);
  if (!slot.completed) return shared_receives_->post_again(slot);
  violation("a completed receive of a shared queue was not polled before its queue pair was destroyed");
  unclaim(fabric_, slot.piece);
}

Status SimQueuePair::start(Bytes private_data) {
  if (private_data.size() > kPrivateDataBytesMax) return invalid_argument("private data longer than 56 bytes");
  if (state_ == QueuePairState::kError) return error_;
  RRPC_CHECK(state_ == QueuePairState::kInit, "a queue pair is started once");
  state_ = QueuePairState::kConnecting;
  if (!out_) {
    dial(private_data);
  } else {
    out_->send([data = std::vector(private_data.begin(), private_data.end()),
                depth = limits_.read_depth](SimQueuePair& client) { client.on_accepted(data, depth); });
  }
  return {};
}

void SimQueuePair::dial(Bytes private_data) {
  const FaultPlan& plan = fabric_.plan;
  const bool unanswered = fabric_.rng.chance(plan.connect_unanswered_probability);
  const bool refused = fabric_.rng.chance(plan.connect_refused_probability);
  fabric_.trace(number(), "dials");
  if (unanswered) return;
  Offer offer{number(), host_, limits_.read_depth, {private_data.begin(), private_data.end()}};
  fabric_.events.after(fabric_.message_delay(), [&fabric = fabric_, address = address_, offer = std::move(offer),
                                                 refused] { deliver_offer(fabric, address, offer, refused); });
}

void SimQueuePair::take_offer(const Offer& offer) {
  offered_private_data_ = offer.private_data;
  if (fabric_.plan.offer_known_at_accept) note_private_data(offer.private_data);
  limits_.read_depth = std::min(limits_.read_depth, offer.read_depth);
  connect_to(offer.client_host, offer.client_number);
  fabric_.queue_pair(offer.client_number)->connect_to(host_, number());
}

void SimQueuePair::connect_to(Host* peer_host, uint32_t peer_number) {
  peer_host_ = peer_host;
  peer_number_ = peer_number;
  out_ = fabric_.create_channel(host_, peer_host, peer_number);
}

void SimQueuePair::on_refused(const std::string& why) {
  if (state_ == QueuePairState::kConnecting) enter_error(unavailable("connection to " + address_ + " refused: " + why));
}

void SimQueuePair::on_accepted(std::vector<std::byte> private_data, uint32_t read_depth) {
  if (state_ != QueuePairState::kConnecting) return;
  limits_.read_depth = std::min(limits_.read_depth, read_depth);
  become_connected(std::move(private_data));
  out_->send([](SimQueuePair& server) { server.on_ready(); });
  if (!fabric_.rng.chance(fabric_.plan.loss_probability)) return;
  fabric_.events.after(fabric_.rng.between(0, fabric_.plan.loss_after_ns_max), [&fabric = fabric_, number = number()] {
    if (SimQueuePair* client = fabric.queue_pair(number)) client->lose();
  });
}

void SimQueuePair::on_ready() {
  if (state_ == QueuePairState::kConnecting) become_connected(std::move(offered_private_data_));
}

void SimQueuePair::note_private_data(std::vector<std::byte> private_data) {
  peer_private_data_ = std::move(private_data);
  peer_private_data_.resize(kPrivateDataBytesMax);  // zero padded, as rdma_cm does
}

void SimQueuePair::become_connected(std::vector<std::byte> private_data) {
  note_private_data(std::move(private_data));
  state_ = QueuePairState::kConnected;
  fabric_.trace(number(), "connected to", peer_number_);
  fabric_.tell(number());
}

void SimQueuePair::on_peer_closed() {
  const bool refused = state_ == QueuePairState::kConnecting && peer_private_data_.empty() && !address_.empty();
  enter_error(unavailable(refused ? "connection to " + address_ + " refused" : "peer closed"));
}

std::string SimQueuePair::peer_description() const {
  if (peer_host_ == nullptr) return "sim " + address_;
  return "sim host " + peer_host_->name + " qp" + std::to_string(peer_number_);
}

void SimQueuePair::disconnect(const std::string& reason) {
  if (state_ == QueuePairState::kInit && out_) {  // a server that has not accepted
    out_->send([reason](SimQueuePair& client) { client.on_refused(reason); });
    return enter_error(unavailable("rejected: " + reason));
  }
  close_down(unavailable("closed: " + reason));
}

void SimQueuePair::lose() {
  fabric_.trace(number(), "lost", peer_number_);
  out_->sever();
  notice_loss();
  SimQueuePair* peer = fabric_.queue_pair(peer_number_);
  if (peer == nullptr) return;
  peer->out_->sever();
  peer->notice_loss();
}

void SimQueuePair::notice_loss() {
  if (!fabric_.rng.chance(fabric_.plan.loss_notice_probability)) return;
  fabric_.events.after(fabric_.message_delay(), [&fabric = fabric_, number = number()] {
    if (SimQueuePair* self = fabric.queue_pair(number)) self->enter_error(unavailable("connection lost"));
  });
}

void SimQueuePair::close_down(Status why) {
  if (state_ == QueuePairState::kError) return;
  if (out_) out_->send([](SimQueuePair& peer) { peer.on_peer_closed(); });
  enter_error(std::move(why));
}

void SimQueuePair::enter_error(Status why) {
  if (state_ == QueuePairState::kError) return;
  state_ = QueuePairState::kError;
  error_ = std::move(why);
  fabric_.trace(number(), "error: " + error_.message());
  drop_exposures(false);
  detach_sends();
  flush_sends();
  for (const ReceiveSlotPtr& slot : open_receives_) complete_receive(slot, WcStatus::kFlushed, 0);
  open_receives_.clear();
  fabric_.tell(number());
}

void SimQueuePair::detach_sends() {
  for (const SendRequestPtr& request : pending_sends_) {
    if (!request->launched || request->finished || request->taken || request->opcode == Opcode::kRead) continue;
    request->copy = gather(fabric_, *request);
    request->taken = true;
  }
}

void SimQueuePair::flush_sends() {
  bool failed = false;
  for (const SendRequestPtr& request : pending_sends_) {
    const bool own_failure = request->finished && request->status != WcStatus::kSuccess;
    if (!own_failure && (failed || !request->finished)) request->status = WcStatus::kFlushed;
    request->finished = true;
    failed |= request->status != WcStatus::kSuccess;
    if (request->signalled || (failed && !request->reserved)) complete_send(request);
  }
  pending_sends_.clear();
  waiting_sends_.clear();
}

void SimQueuePair::violation(const std::string& text) {
  fabric_.violation(host_, "qp" + std::to_string(number()) + ": " + text);
}

}  // namespace rrpc::provider::sim
