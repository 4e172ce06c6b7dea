#include "provider/verbs/adapter.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "provider/verbs/async_watcher.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/protection_domain.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/registering.h"
#include "provider/verbs/shared_receive_queue.h"

namespace rrpc::provider::verbs {

// What is tried; an adapter takes the first that it can do, and may grant more than was asked for.
static constexpr uint32_t kInlineTries[] = {400, 256, 192, 128, 96, 64, 32, 0};
static constexpr uint32_t kProbeDepth = 16;
static constexpr int kProbeCompletions = 64;
// That a port may be down: about as long as a queue pair goes on sending what isn't acknowledged.
static constexpr TimeNs kPortPatience = 2 * kSecond;

Result<std::unique_ptr<Adapter>> Adapter::open(ibv_context* context, bool owns_context) {
  std::unique_ptr<Adapter> adapter(new Adapter);
  adapter->context_ = context;
  adapter->owns_context_ = owns_context;
  adapter->name_ = ibv_get_device_name(context->device);
  adapter->iwarp_ = context->device->transport_type == IBV_TRANSPORT_IWARP;
  RRPC_RETURN_IF_ERROR(adapter->query());
  RRPC_RETURN_IF_ERROR(adapter->probe());
  AsyncWatcher::process().watch(adapter.get());
  return adapter;
}

Adapter::~Adapter() {
  if (owns_context_) ibv_close_device(context_);
}

Status Adapter::query() {
  if (const int error_number = ibv_query_device(context_, &attributes_); error_number != 0) {
    return verbs_error(error_number, "querying the adapter " + name_);
  }
  on_demand_ = on_demand_wanted(std::getenv("RRPC_ODP")) && offers_on_demand(context_);
  return {};
}

static Status unusable(const std::string& name, const Status& why) {
  return failed_precondition("the adapter " + name + " can't be used: " + why.message());
}

// Drivers may offer what they don't carry out, and limits may be too low for anything: so everything is made once.
Status Adapter::probe() {
  errno = 0;
  ibv_pd* domain = ibv_alloc_pd(context_);
  if (domain == nullptr) return unusable(name_, verbs_error(errno, "making a protection domain"));
  Status status;
  ibv_cq* completions = ibv_create_cq(context_, kProbeCompletions, nullptr, nullptr, 0);
  if (completions == nullptr) {
    status = verbs_error(errno, "making a completion queue");
  } else {
    status = probe_queue_pair(domain, completions);
    ibv_destroy_cq(completions);
  }
  has_windows_ = status.ok() && probe_windows(domain);
  ibv_dealloc_pd(domain);
  return status.ok() ? status : unusable(name_, status);
}

Status Adapter::probe_queue_pair(ibv_pd* domain, ibv_cq* completions) {
  for (const uint32_t inline_bytes : kInlineTries) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = completions;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {.max_send_wr = kProbeDepth,
                      .max_recv_wr = kProbeDepth,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = inline_bytes};
    errno = 0;
    if (ibv_qp* queue_pair = ibv_create_qp(domain, &attributes); queue_pair != nullptr) {
      ibv_destroy_qp(queue_pair);
      inline_bytes_max_ = inline_bytes;
      return {};
    }
  }
  return verbs_error(errno, "making a queue pair");
}

bool Adapter::probe_windows(ibv_pd* domain) const {
  const unsigned flags = attributes_.device_cap_flags;
  if ((flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) == 0) return false;
  if (attributes_.max_mw <= 0 || (flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) == 0) return false;
  ibv_mw* window = ibv_alloc_mw(domain, IBV_MW_TYPE_2);
  if (window == nullptr) return false;
  ibv_dealloc_mw(window);
  return true;
}

Result<std::shared_ptr<ProtectionDomain>> Adapter::protection_domain() {
  if (!has_windows_) return ProtectionDomain::create(context_, false, on_demand_);
  std::lock_guard lock(mutex_);
  std::shared_ptr<ProtectionDomain> domain = shared_domain_.lock();
  if (domain == nullptr) {
    RRPC_ASSIGN_OR_RETURN(domain, ProtectionDomain::create(context_, true, on_demand_));
    shared_domain_ = domain;
  }
  return domain;
}

void Adapter::attach(VerbsQueuePair* queue_pair) {
  std::lock_guard lock(mutex_);
  queue_pairs_.insert(queue_pair);
}

void Adapter::detach(VerbsQueuePair* queue_pair) {
  std::lock_guard lock(mutex_);
  queue_pairs_.erase(queue_pair);
}

void Adapter::attach(VerbsSharedReceiveQueue* queue) {
  std::lock_guard lock(mutex_);
  shared_receive_queues_.insert(queue);
}

void Adapter::detach(VerbsSharedReceiveQueue* queue) {
  std::lock_guard lock(mutex_);
  shared_receive_queues_.erase(queue);
}

template <typename Concerned>
void Adapter::doom_where(const Status& reason, Concerned concerned, bool vague) {
  std::lock_guard lock(mutex_);
  for (VerbsQueuePair* queue_pair : queue_pairs_) {
    if (concerned(*queue_pair)) queue_pair->doom(reason, vague);
  }
}

// A peer overruns the completion queue of a connection that draws from shared receives; another one would be ours to
// blame.
void Adapter::end_overrun(const ibv_cq* completions) {
  const std::string what = "completion queue on " + name_ + " overflowed";
  std::lock_guard lock(mutex_);
  for (VerbsQueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->completions() != completions) continue;
    queue_pair->note_overrun();
    queue_pair->doom(
        queue_pair->lost_receives()
            ? Status::protocol_error("the peer sent more messages than it was granted: the connection's " + what)
            : internal_error("a connection's " + what),
        false);
  }
}

void Adapter::handle_event(const ibv_async_event& event, TimeNs now) {
  const auto this_one = [&](const VerbsQueuePair& queue_pair) { return queue_pair.handle() == event.element.qp; };
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
      return doom_where(unavailable("the adapter " + name_ + " has given up the queue pair"), this_one, true);
    case IBV_EVENT_QP_REQ_ERR:
      return doom_where(unavailable("the peer sent what the adapter " + name_ + " couldn't carry out"), this_one);
    case IBV_EVENT_QP_ACCESS_ERR:
      return doom_where(permission_denied("the peer tried to reach memory that isn't open to it"), this_one);
    case IBV_EVENT_CQ_ERR:
      return end_overrun(event.element.cq);
    case IBV_EVENT_PORT_ERR:
      ports_down_.emplace(static_cast<uint8_t>(event.element.port_num), now + kPortPatience);
      return;
    case IBV_EVENT_PORT_ACTIVE:
      ports_down_.erase(static_cast<uint8_t>(event.element.port_num));
      return;
    case IBV_EVENT_DEVICE_FATAL:
      failed_ = true;
      return doom_where(unavailable("the adapter " + name_ + " failed or was taken away"),
                        [](const VerbsQueuePair&) { return true; });
    case IBV_EVENT_SRQ_ERR:
      return doom_where(
          unavailable("a shared receive queue of " + name_ + " failed"),
          [&](const VerbsQueuePair& queue_pair) { return queue_pair.handle()->srq == event.element.srq; });
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      std::lock_guard lock(mutex_);
      for (VerbsQueuePair* queue_pair : queue_pairs_) {
        if (this_one(*queue_pair)) queue_pair->note_last_receive();
      }
      return;
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      std::lock_guard lock(mutex_);
      for (VerbsSharedReceiveQueue* queue : shared_receive_queues_) {
        if (queue->handle() == event.element.srq) queue->on_limit();
      }
      return;
    }
    default:
      return;
  }
}

TimeNs Adapter::give_up_ports(TimeNs now) {
  TimeNs next = kNever;
  for (auto down = ports_down_.begin(); down != ports_down_.end();) {
    const auto [port, until] = *down;
    if (until > now) {
      next = std::min(next, until);
      ++down;
      continue;
    }
    down = ports_down_.erase(down);
    if (active_port(port).ok()) continue;  // the event was lost
    doom_where(unavailable("port " + std::to_string(port) + " of " + name_ + " went down"),
               [port](const VerbsQueuePair& queue_pair) { return queue_pair.port() == port; });
  }
  return next;
}

}  // namespace rrpc::provider::verbs
