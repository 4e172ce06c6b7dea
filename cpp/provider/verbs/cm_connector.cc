#include "provider/verbs/cm_connector.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "provider/verbs/bring_up.h"
#include "provider/verbs/errors.h"

namespace rrpc::provider::verbs {
namespace {

constexpr uint32_t kDepthMax = 255;  // eight bits on the wire

int milliseconds_until(TimeNs deadline) {
  const TimeNs left = std::max<TimeNs>(0, deadline - now_ns());
  return static_cast<int>(std::min<TimeNs>(left / kMillisecond + 1, INT_MAX));
}

SocketAddress socket_address_of(const sockaddr* address) {
  SocketAddress copy;
  copy.length = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(&copy.storage, address, copy.length);
  return copy;
}

}  // namespace

std::string CmConnector::local_description() const {
  return socket_address_of(rdma_get_local_addr(id_.get())).to_string() + " on " + adapter_->name();
}

Result<std::unique_ptr<Connector>> CmConnector::open(const Address& address, TimeNs deadline) {
  RRPC_RETURN_IF_ERROR(check_for_rdma_cm(address.policy));
  RRPC_RETURN_IF_ERROR(Adapters::process().any_usable());
  if (!address.device.empty()) RRPC_RETURN_IF_ERROR(Adapters::process().by_name(address.device).status());
  RRPC_ASSIGN_OR_RETURN(const auto targets, provider::resolve(address.target, ResolveFor::kConnect, deadline));
  Status first_error;
  for (const SocketAddress& target : targets) {
    auto connector = open_one(address, target, deadline);
    if (connector.ok()) return connector;
    if (first_error.ok()) first_error = connector.status();
  }
  return first_error;
}

Result<std::unique_ptr<Connector>> CmConnector::open_one(const Address& address, SocketAddress target,
                                                         TimeNs deadline) {
  for (int tries = 1;; ++tries) {
    RRPC_ASSIGN_OR_RETURN(CmChannel channel, CmChannel::create());
    RRPC_ASSIGN_OR_RETURN(CmId id, create_cm_id(channel));
    std::unique_ptr<CmConnector> connector(new CmConnector(std::move(channel), std::move(id), false));
    const Status status = connector->resolve(address, target, deadline);
    if (status.ok()) return std::unique_ptr<Connector>(std::move(connector));
    if (status.code() != StatusCode::kAlreadyExists || tries == kPortTries) return status;
  }
}

Status CmConnector::resolve(const Address& address, SocketAddress target, TimeNs deadline) {
  peer_ = address.target;
  std::optional<SocketAddress> source;
  if (!address.device.empty()) source = source_address(address, target.storage.ss_family);
  sockaddr* from = source ? source->get() : nullptr;
  if (rdma_resolve_addr(id_.get(), from, target.get(), milliseconds_until(deadline)) != 0) {
    return cm_error(errno, "no RDMA path to", peer_);
  }
  RRPC_RETURN_IF_ERROR(expect(RDMA_CM_EVENT_ADDR_RESOLVED, deadline));
  if (id_->verbs == nullptr) return cm_error(ENODEV, "no RDMA path to", peer_);
  RRPC_ASSIGN_OR_RETURN(adapter_, Adapters::process().by_context(id_->verbs));
  RRPC_RETURN_IF_ERROR(check_place(address, *adapter_, id_->port_num));
  if (adapter_->soft_iwarp()) {
    RRPC_ASSIGN_OR_RETURN(source_port_, hold_port(socket_address_of(rdma_get_local_addr(id_.get()))));
    Result<UniqueFd> reached = dial(peer_, {target}, deadline);
    if (reached.status().code() == StatusCode::kDeadlineExceeded) return reached.status();
    if (reached.ok()) reached_ = std::move(reached).value();
  }
  RRPC_RETURN_IF_ERROR(set_traffic_class(id_.get(), address));
  // A tuning of fault detection: kernels that lack it use their default.
  uint8_t ack_timeout = kAckTimeout;
  (void)rdma_set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, sizeof(ack_timeout));
  if (rdma_resolve_route(id_.get(), milliseconds_until(deadline)) != 0) {
    return cm_error(errno, "no RDMA route to", peer_);
  }
  return expect(RDMA_CM_EVENT_ROUTE_RESOLVED, deadline);
}

Status CmConnector::expect(rdma_cm_event_type type, TimeNs deadline) {
  const std::optional<CmEvent> event = channel_.wait(deadline);
  if (!event)
    return deadline_exceeded("finding an RDMA path to " + peer_ + " took too long; check its address and route");
  if (event->type == type) return {};
  return cm_failure(*event, peer_);
}

Result<std::unique_ptr<Connector>> CmConnector::answer(CmEvent request, const Address& address) {
  CmId id(request.id);
  const auto refuse = [&](const Status& status) {
    const std::vector<std::byte> reason = refusal_bytes(status.message());
    rdma_reject(id.get(), reason.data(), static_cast<uint8_t>(reason.size()));
    return status;
  };
  Result<CmChannel> channel = CmChannel::create();
  if (!channel.ok()) return refuse(channel.status());
  if (rdma_migrate_id(id.get(), channel->handle()) != 0)
    return refuse(verbs_error(errno, "cannot migrate an rdma_cm id"));
  const Result<Adapter*> adapter = Adapters::process().by_context(id->verbs);
  if (!adapter.ok()) return refuse(adapter.status());
  if (const Status place = check_place(address, **adapter, id->port_num); !place.ok()) return refuse(place);

  std::unique_ptr<CmConnector> connector(new CmConnector(std::move(channel).value(), std::move(id), true));
  connector->adapter_ = *adapter;
  connector->peer_ = socket_address_of(rdma_get_peer_addr(connector->id_.get())).to_string();
  connector->peer_private_data_ = std::move(request.private_data);
  connector->offered_responder_resources_ = request.responder_resources;
  connector->offered_initiator_depth_ = request.initiator_depth;
  if ((*adapter)->iwarp()) {
    // Reported from the peer's side by some drivers and from ours by others.
    const uint32_t both = std::min(request.responder_resources, request.initiator_depth);
    connector->offered_responder_resources_ = connector->offered_initiator_depth_ = std::max(1u, both);
  }
  return std::unique_ptr<Connector>(std::move(connector));
}

CmConnector::~CmConnector() { destroy_queue_pair(); }

Result<ibv_qp*> CmConnector::create_queue_pair(ibv_pd* domain, ibv_qp_init_attr& attributes) {
  if (rdma_create_qp(id_.get(), domain, &attributes) != 0) {
    error_ = verbs_error(errno, "cannot create a queue pair on " + adapter_->name());
    return error_;
  }
  error_ = {};
  return id_->qp;
}

void CmConnector::destroy_queue_pair() {
  if (phase_ != Phase::kEnded) disconnect(error_.ok() ? "closed before it was accepted" : error_.message());
  if (id_->qp != nullptr) rdma_destroy_qp(id_.get());
}

rdma_conn_param CmConnector::parameters(Bytes private_data, uint32_t read_depth) {
  const ibv_device_attr& device = adapter_->attributes();
  uint32_t responder_resources = std::min({read_depth, static_cast<uint32_t>(device.max_qp_rd_atom), kDepthMax});
  uint32_t initiator_depth = std::min({read_depth, static_cast<uint32_t>(device.max_qp_init_rd_atom), kDepthMax});
  if (server_) {
    responder_resources = std::min(responder_resources, offered_responder_resources_);
    initiator_depth = std::min(initiator_depth, offered_initiator_depth_);
  }
  read_depth_ = initiator_depth;
  rdma_conn_param parameters{};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  parameters.responder_resources = static_cast<uint8_t>(responder_resources);
  parameters.initiator_depth = static_cast<uint8_t>(initiator_depth);
  parameters.retry_count = kRetryCount;
  parameters.rnr_retry_count = adapter_->not_ready_retries();
  return parameters;
}

Status CmConnector::start(Bytes private_data, uint32_t read_depth) {
  if (private_data.size() > kPrivateDataBytesMax) {
    return invalid_argument("private data of " + std::to_string(private_data.size()) + " bytes; at most " +
                            std::to_string(kPrivateDataBytesMax) + " fit");
  }
  if (phase_ != Phase::kInit) return phase_ == Phase::kEnded ? error_ : failed_precondition("already started");
  rdma_conn_param offer = parameters(private_data, std::max(1u, read_depth));
  if ((server_ ? rdma_accept(id_.get(), &offer) : rdma_connect(id_.get(), &offer)) != 0) {
    end(cm_error(errno, server_ ? "cannot accept" : "cannot connect to", peer_));
    return error_;
  }
  phase_ = Phase::kConnecting;
  unanswered_ = adapter_->iwarp() && !server_;
  return {};
}

void CmConnector::drive() {
  while (phase_ != Phase::kEnded || unanswered_) {
    const std::optional<CmEvent> event = channel_.next();
    if (!event) return;
    unanswered_ = false;
    if (phase_ == Phase::kEnded) return;
    handle(*event);
  }
}

void CmConnector::handle(const CmEvent& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ESTABLISHED:
      return established(event);
    // A queue pair made by rdma_create_qp gets ESTABLISHED instead; multicast is for datagrams.
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
      return;
    default:
      return end(cm_failure(event, peer_));
  }
}

void CmConnector::established(const CmEvent& event) {
  if (!server_) {
    uint32_t granted = event.initiator_depth;
    // As for CONNECT_REQUEST: whose side is meant differs between drivers.
    if (adapter_->iwarp()) granted = std::max(1u, std::min(granted, event.responder_resources));
    read_depth_ = std::min(read_depth_, granted);
    peer_private_data_ = event.private_data;
  }
  reached_.reset();
  source_port_.reset();
  phase_ = Phase::kConnected;
}

void CmConnector::end(Status error) {
  // Of an iWARP connection that isn't made yet rdma_disconnect() waits for the peer's answer: see unanswered().
  const bool started = phase_ == Phase::kConnected || (phase_ == Phase::kConnecting && !adapter_->iwarp());
  phase_ = Phase::kEnded;
  error_ = std::move(error);
  if (started) (void)rdma_disconnect(id_.get());
  if (id_->qp != nullptr) bring_to_error(id_->qp);
}

void CmConnector::disconnect(const std::string& reason) {
  if (phase_ == Phase::kEnded) return;
  if (phase_ == Phase::kInit && server_) {
    const std::vector<std::byte> refusal = refusal_bytes(reason);
    (void)rdma_reject(id_.get(), refusal.data(), static_cast<uint8_t>(refusal.size()));
  }
  end(unavailable("the connection with " + peer_ + " was closed here: " + reason));
}

}  // namespace rrpc::provider::verbs
