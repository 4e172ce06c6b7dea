#include "provider/verbs/bring_up.h"

#include <algorithm>
#include <string>

#include "provider/verbs/ece.h"
#include "provider/verbs/errors.h"

namespace rrpc::provider::verbs {
namespace {

// 0.64 ms, for a peer that asks to be retried.
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kHopLimit = 64;

ibv_ah_attr path_attributes(const Place& place, const Introduction& peer) {
  ibv_ah_attr attributes{};
  attributes.port_num = place.port;
  attributes.dlid = peer.lid;
  attributes.sl = place.policy.service_level.value_or(0);
  // Within an InfiniBand subnet the LID is enough.
  attributes.is_global = place.port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET || peer.lid == 0 ||
                         place.policy.global_route || place.policy.traffic_class;
  if (attributes.is_global) {
    attributes.grh.dgid = peer.gid;
    attributes.grh.sgid_index = static_cast<uint8_t>(place.gid.index);
    attributes.grh.hop_limit = kHopLimit;
    attributes.grh.traffic_class = place.policy.traffic_class.value_or(0);
  }
  return attributes;
}

}  // namespace

Status bring_to_init(ibv_qp* queue_pair, const Place& place) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = place.partition_index;
  attributes.port_num = place.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? Status() : verbs_error(error, "cannot bring a queue pair to INIT");
}

static Status bring_to_rtr(ibv_qp* queue_pair, const Place& place, const Path& path) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = static_cast<ibv_mtu>(std::min(path.own.mtu, path.peer.mtu));
  receive.dest_qp_num = path.peer.queue_pair;
  receive.rq_psn = path.peer.packet_sequence;
  receive.max_dest_rd_atomic = static_cast<uint8_t>(path.responder_resources);
  receive.min_rnr_timer = kMinRnrTimer;
  receive.ah_attr = path_attributes(place, path.peer);
  const int error = ibv_modify_qp(queue_pair, &receive,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return {};
  const Status status =
      verbs_error(error, "no path from GID " + place.gid.text + " (index " + std::to_string(place.gid.index) + " of " +
                             place.adapter->name() + ") to the peer's GID " + gid_text(path.peer.gid));
  return unavailable(status.message() + "; choose GIDs of one network on both ends, with ?gid=INDEX");
}

Result<Ece> bring_to_rts(ibv_qp* queue_pair, const Place& place, const Path& path) {
  RRPC_RETURN_IF_ERROR(set_ece(queue_pair, path.own.ece, path.peer.ece));
  RRPC_RETURN_IF_ERROR(bring_to_rtr(queue_pair, place, path));
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = kAckTimeout;
  send.retry_cnt = kRetryCount;
  send.rnr_retry = path.peer.not_ready_retries;
  send.sq_psn = path.own.packet_sequence;
  send.max_rd_atomic = static_cast<uint8_t>(path.initiator_depth);
  const int error = ibv_modify_qp(
      queue_pair, &send,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return verbs_error(error, "cannot bring a queue pair to RTS");
  if (path.own.ece.vendor != path.peer.ece.vendor) return Ece{};
  return query_ece(queue_pair);
}

void bring_to_error(ibv_qp* queue_pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE);
}

}  // namespace rrpc::provider::verbs
