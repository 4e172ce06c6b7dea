// How a queue pair is made, and taken down.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

#include "provider/verbs/address.h"
#include "provider/verbs/completion_queue.h"
#include "provider/verbs/ece.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/fork.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/shared_receive_queue.h"

namespace rrpc::provider::verbs {

static constexpr uint32_t kInternalDepth = 256;  // room in the send queue for binding and invalidating windows
static constexpr uint32_t kSgeCountMax = 16;     // more would make every entry of the send queue larger
static constexpr uint32_t kMessageBytesMax = 1u << 30;
static constexpr uint32_t kAcknowledgeAfter = 32;

static uint32_t next_queue_pair_number() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

static uint32_t positive(int value) { return static_cast<uint32_t>(std::max(value, 0)); }

static uint32_t internal_depth_for(const ibv_device_attr& attributes) {
  return std::clamp(positive(attributes.max_qp_wr) / 4, 1u, kInternalDepth);
}

static QueuePairLimits limits_for(const QueuePairConfig& config, const Adapter& adapter, const ibv_port_attr& port) {
  const ibv_device_attr& attributes = adapter.attributes();
  QueuePairLimits limits;
  limits.send_depth =
      std::clamp(config.send_depth, 1u, std::max(1u, positive(attributes.max_qp_wr) - internal_depth_for(attributes)));
  const uint32_t receives_max =
      config.shared_receives != nullptr ? config.shared_receives->depth() : positive(attributes.max_qp_wr);
  limits.receive_depth = std::clamp(config.receive_depth, 1u, std::max(1u, receives_max));
  limits.sge_count_max = std::clamp(positive(attributes.max_sge), 1u, kSgeCountMax);
  const uint32_t max_sge_rd = attributes.max_sge_rd > 0 ? positive(attributes.max_sge_rd) : limits.sge_count_max;
  limits.read_sge_count_max = std::min(max_sge_rd, limits.sge_count_max);
  limits.read_depth = std::min(
      {config.read_depth, positive(attributes.max_qp_rd_atom), positive(attributes.max_qp_init_rd_atom), 255u});
  limits.inline_bytes_max = adapter.inline_bytes_max();
  limits.message_bytes_max = port.max_msg_sz != 0 ? std::min(port.max_msg_sz, kMessageBytesMax) : kMessageBytesMax;
  limits.dedicated_read_sinks = adapter.iwarp();
  limits.invalidates = adapter.has_windows();
  limits.messages_complete = true;
  return limits;
}

Result<std::unique_ptr<QueuePair>> VerbsQueuePair::create(CompletionQueue& cq, const QueuePairConfig& config,
                                                          std::unique_ptr<Connector> connector) {
  RRPC_ASSIGN_OR_RETURN(const ibv_port_attr port, connector->adapter().active_port(connector->port()));
  if (config.shared_receives != nullptr &&
      &static_cast<VerbsSharedReceiveQueue*>(config.shared_receives)->adapter() != &connector->adapter()) {
    return invalid_argument("the shared receive queue is of another adapter than the connection");
  }
  std::unique_ptr<VerbsQueuePair> made(
      new VerbsQueuePair(static_cast<VerbsCompletionQueue&>(cq), config, std::move(connector), port));
  RRPC_RETURN_IF_ERROR(made->set_up());
  return std::unique_ptr<QueuePair>(std::move(made));
}

VerbsQueuePair::VerbsQueuePair(VerbsCompletionQueue& cq, const QueuePairConfig& config,
                               std::unique_ptr<Connector> connector, const ibv_port_attr& port)
    : QueuePair(next_queue_pair_number()),
      cq_(cq),
      connector_(std::move(connector)),
      adapter_(connector_->adapter()),
      config_(config),
      fork_generation_(fork_generation()),
      shared_receives_(static_cast<VerbsSharedReceiveQueue*>(config.shared_receives)),
      limits_(limits_for(config, adapter_, port)),
      internal_depth_(internal_depth_for(adapter_.attributes())),
      sends_(limits_.send_depth + internal_depth_),
      receives_(shared_receives_ != nullptr ? 0 : limits_.receive_depth) {
  message_.sg_list = &message_sge_;
  message_.num_sge = 1;
  message_.opcode = IBV_WR_SEND;
}

Status VerbsQueuePair::set_up() {
  RRPC_ASSIGN_OR_RETURN(domain_, adapter_.protection_domain());
  if (adapter_.has_windows()) {
    exposures_ =
        std::make_unique<WindowExposures>(domain_, static_cast<InternalWork&>(*this), !adapter_.windows_hold_range());
  } else {
    exposures_ = std::make_unique<RegistrationExposures>(domain_, static_cast<InternalWork&>(*this));
  }
  RRPC_RETURN_IF_ERROR(create_completions());
  RRPC_RETURN_IF_ERROR(create_handle());
  cq_.attach(this);
  adapter_.attach(this);
  return {};
}

// Of shared receives it has room for those that the peer was granted. A peer that sends more overruns this queue alone.
Status VerbsQueuePair::create_completions() {
  RRPC_ASSIGN_OR_RETURN(ibv_comp_channel * channel, cq_.channel_of(adapter_));
  const uint32_t wanted = limits_.send_depth + internal_depth_ + limits_.receive_depth + 1;
  if (wanted > positive(adapter_.attributes().max_cqe)) {
    return resource_exhausted("queues of " + std::to_string(limits_.send_depth) + " sends and " +
                              std::to_string(limits_.receive_depth) + " receives need " + std::to_string(wanted) +
                              " completions, the adapter " + adapter_.name() + " gives " +
                              std::to_string(adapter_.attributes().max_cqe));
  }
  errno = 0;
  completions_ = ibv_create_cq(adapter_.context(), static_cast<int>(wanted), this, channel, 0);
  return completions_ != nullptr ? Status() : verbs_error(errno, "making a completion queue on " + adapter_.name());
}

// Inline room and depth share the adapter's memory: what was granted to a small queue may be too much for a deep one.
Status VerbsQueuePair::create_handle() {
  for (;;) {
    ibv_qp_init_attr attributes{};
    attributes.qp_context = this;
    attributes.send_cq = attributes.recv_cq = completions_;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {.max_send_wr = limits_.send_depth + internal_depth_,
                      .max_recv_wr = shared_receives_ != nullptr ? 0 : limits_.receive_depth,
                      .max_send_sge = limits_.sge_count_max,
                      .max_recv_sge = 1,
                      .max_inline_data = limits_.inline_bytes_max};
    if (shared_receives_ != nullptr) attributes.srq = shared_receives_->handle();
    auto created = connector_->create_queue_pair(domain_->handle(), attributes);
    if (created.ok()) {
      handle_ = *created;
      return {};
    }
    if (limits_.inline_bytes_max > 0) {
      limits_.inline_bytes_max /= 2;
    } else if (limits_.sge_count_max > 2) {
      limits_.sge_count_max /= 2;
      limits_.read_sge_count_max = std::min(limits_.read_sge_count_max, limits_.sge_count_max);
    } else {
      return created.status();
    }
  }
}

VerbsQueuePair::~VerbsQueuePair() {
  if (fork_generation_ != fork_generation()) {  // the parent's: what it stands for isn't mapped here
    [[maybe_unused]] const Connector* connector = connector_.release();
    [[maybe_unused]] const Exposures* exposures = exposures_.release();
    return;
  }
  if (handle_ != nullptr) {
    if (state_ != QueuePairState::kError) disconnect("the queue pair was destroyed");
    linger_before_destruction();
  }
  give_back_shared_receives();
  cq_.detach(this);
  take_down();
}

// Where a queue pair runs over TCP (iWARP) its addresses stand for it, without the adapter that only one end knows.
EndNames VerbsQueuePair::end_names() const {
  if (adapter_.iwarp()) {
    const auto without_adapter = [](const std::string& text) { return text.substr(0, text.find(" on ")); };
    return {without_adapter(local_description()), without_adapter(peer_description())};
  }
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  const bool known = handle_ != nullptr && ibv_query_qp(handle_, &attributes, IBV_QP_DEST_QPN, &ignored) == 0;
  return {std::to_string(handle_ == nullptr ? 0 : handle_->qp_num),
          known ? std::to_string(attributes.dest_qp_num) : ""};
}

// As the adapter has them. iWARP's queue pairs don't say.
std::map<std::string, std::string> VerbsQueuePair::fabric_marks() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  if (handle_ == nullptr || state_ != QueuePairState::kConnected || adapter_.iwarp() ||
      ibv_query_qp(handle_, &attributes, IBV_QP_AV | IBV_QP_PKEY_INDEX, &ignored) != 0)
    return {};
  std::map<std::string, std::string> marks{{"service_level", std::to_string(attributes.ah_attr.sl)}};
  if (attributes.ah_attr.is_global != 0) marks["traffic_class"] = std::to_string(attributes.ah_attr.grh.traffic_class);
  __be16 partition = 0;
  if (ibv_query_pkey(adapter_.context(), port(), attributes.pkey_index, &partition) == 0)
    marks["pkey"] = hexadecimal(ntohs(partition));
  if (const Result<Ece> ece = query_ece(handle_); ece.ok() && ece->vendor != 0)
    marks["ece"] = hexadecimal(ece->vendor) + ":" + hexadecimal(ece->options);
  return marks;
}

// Windows first: they hold the queue pair that they are bound to.
void VerbsQueuePair::take_down() {
  if (exposures_ != nullptr) exposures_->close_all();
  if (handle_ != nullptr) {
    adapter_.detach(this);
    handle_ = nullptr;
    connector_->destroy_queue_pair();
  }
  if (completions_ == nullptr) return;
  if (notifications_unacknowledged_ > 0) ibv_ack_cq_events(completions_, notifications_unacknowledged_);
  notifications_unacknowledged_ = 0;
  ibv_destroy_cq(completions_);
  completions_ = nullptr;
}

void VerbsQueuePair::on_notified() {
  notification_requested_ = false;
  if (++notifications_unacknowledged_ < kAcknowledgeAfter) return;  // acknowledging takes a lock
  ibv_ack_cq_events(completions_, notifications_unacknowledged_);
  notifications_unacknowledged_ = 0;
}

void VerbsQueuePair::request_notification() {
  if (completions_ == nullptr || notification_requested_) return;
  notification_requested_ = ibv_req_notify_cq(completions_, 0) == 0;
  polled_since_request_ = false;
}

void VerbsQueuePair::append_wait_handles(std::vector<WaitHandle>& out) const {
  if (handle_ != nullptr && !holds_device()) connector_->append_wait_handles(out);
  if (asking_why()) out.push_back({WaitHandle::kPollAgain});
}

}  // namespace rrpc::provider::verbs
