// An event channel of librdmacm with one id on it. Every event is acknowledged before anyone sees it, since an id can't
// be destroyed before its events are.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"
#include "provider/verbs/address.h"

namespace rrpc::provider::verbs {

struct CmEvent {
  rdma_cm_event_type type{};
  int status = 0;
  rdma_cm_id* id = nullptr;
  std::vector<std::byte> private_data;
  uint32_t responder_resources = 0;
  uint32_t initiator_depth = 0;
};

class CmChannel {
 public:
  static Result<CmChannel> create();

  int fd() const { return handle_->fd; }
  rdma_event_channel* handle() const { return handle_.get(); }
  std::optional<CmEvent> next();  // never blocks
  // Up to the deadline.
  std::optional<CmEvent> wait(TimeNs deadline);

 private:
  struct Destroy {
    void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
  };
  explicit CmChannel(rdma_event_channel* handle) : handle_(handle) {}

  std::unique_ptr<rdma_event_channel, Destroy> handle_;
};

struct DestroyCmId {
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using CmId = std::unique_ptr<rdma_cm_id, DestroyCmId>;

Result<CmId> create_cm_id(CmChannel& channel);
// As the address asks, before the route is resolved or the id listens.
Status set_traffic_class(rdma_cm_id* id, const Address& address);
// How many ports of rdma_cm's choice are tried: they are free in its own space, and Soft-iWARP needs TCP's as well.
inline constexpr int kPortTries = 16;

// What an event that ends a connection, or an attempt at one, means for the user.
Status cm_failure(const CmEvent& event, const std::string& peer);
// The same for a call of librdmacm that failed.
Status cm_error(int error_number, const std::string& what, const std::string& target);

// A refusal with its reason, as private data of a rejection.
std::vector<std::byte> refusal_bytes(const std::string& reason);

}  // namespace rrpc::provider::verbs
