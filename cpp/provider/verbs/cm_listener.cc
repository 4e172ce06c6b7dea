#include "provider/verbs/cm_listener.h"

#include <algorithm>
#include <cerrno>

#include "provider/verbs/cm_connector.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/shared_receive_queue.h"

namespace rrpc::provider::verbs {
namespace {

bool is_wildcard(const SocketAddress& where) {
  const ibv_gid gid = gid_of(where);
  const size_t first = where.storage.ss_family == AF_INET6 ? 0 : 12;
  for (size_t i = first; i < sizeof(gid.raw); ++i) {
    if (gid.raw[i] != 0) return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<Listener>> CmListener::create(const Address& address, const ListenOptions& options) {
  RRPC_RETURN_IF_ERROR(check_for_rdma_cm(address.policy));
  if (address.policy.traffic_class)
    return invalid_argument(
        "traffic_class is for the address that clients connect to: over verbs:// the end that connects decides for "
        "both");
  RRPC_RETURN_IF_ERROR(Adapters::process().any_usable());
  if (!address.device.empty()) RRPC_RETURN_IF_ERROR(Adapters::process().by_name(address.device).status());
  RRPC_ASSIGN_OR_RETURN(const auto candidates, resolve(address.target, ResolveFor::kListen, kNever));
  Status first_error;
  for (const SocketAddress& candidate : candidates) {
    auto listener = listen_on(address, candidate, options.backlog);
    for (int tries = 1; candidate.port() == 0 && tries < kPortTries; ++tries) {
      if (listener.status().code() != StatusCode::kAlreadyExists) break;
      listener = listen_on(address, candidate, options.backlog);
    }
    if (listener.ok()) return listener;
    if (first_error.ok()) first_error = listener.status();
  }
  return first_error;
}

Result<std::unique_ptr<Listener>> CmListener::listen_on(const Address& address, SocketAddress where, int backlog) {
  RRPC_ASSIGN_OR_RETURN(CmChannel channel, CmChannel::create());
  RRPC_ASSIGN_OR_RETURN(CmId id, create_cm_id(channel));
  if (rdma_bind_addr(id.get(), where.get()) != 0) return cm_error(errno, "cannot listen on", address.target);
  if (id->verbs != nullptr) {
    RRPC_ASSIGN_OR_RETURN(const Adapter* adapter, Adapters::process().by_context(id->verbs));
    RRPC_RETURN_IF_ERROR(check_place(address, *adapter, id->port_num));
  } else if (!is_wildcard(where)) {
    return invalid_argument("cannot listen on " + address.target +
                            ": that address belongs to no RDMA adapter; `rrpc-info` lists their addresses");
  }
  if (rdma_listen(id.get(), backlog) != 0) return cm_error(errno, "cannot listen on", address.target);
  SocketAddress bound;
  const sockaddr* local = rdma_get_local_addr(id.get());
  bound.length = local->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::copy_n(reinterpret_cast<const std::byte*>(local), bound.length, reinterpret_cast<std::byte*>(&bound.storage));
  return std::unique_ptr<Listener>(new CmListener(std::move(channel), std::move(id), address, bound.to_string()));
}

Result<std::unique_ptr<QueuePair>> CmListener::accept(CompletionQueue& cq, const QueuePairConfig& config) {
  while (std::optional<CmEvent> event = channel_.next()) {
    if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      auto connector = CmConnector::answer(std::move(*event), wanted_);
      if (!connector.ok()) continue;  // the peer was told
      return VerbsQueuePair::create(cq, config, std::move(connector).value());
    }
    // Of an id that listens: its adapter has gone. Others of a wildcard address go on.
    if (event->type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      return unavailable("the adapter that " + address_ + " is an address of was removed; nobody can connect there");
    }
  }
  return std::unique_ptr<QueuePair>();
}

Result<std::unique_ptr<SharedReceiveQueue>> CmListener::create_shared_receive_queue(uint32_t depth) {
  if (id_->verbs == nullptr) {
    return failed_precondition("a shared receive queue belongs to one adapter, and " + address_ +
                               " is an address of them all; listen on one adapter's address");
  }
  RRPC_ASSIGN_OR_RETURN(Adapter * adapter, Adapters::process().by_context(id_->verbs));
  return VerbsSharedReceiveQueue::create(*adapter, depth);
}

}  // namespace rrpc::provider::verbs
