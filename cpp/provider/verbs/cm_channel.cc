#include "provider/verbs/cm_channel.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/text.h"
#include "provider/verbs/errors.h"

namespace rrpc::provider::verbs {

Result<CmChannel> CmChannel::create() {
  rdma_event_channel* handle = rdma_create_event_channel();
  if (handle == nullptr) {
    const Status status = verbs_error(errno, "cannot open librdmacm's event channel");
    return Status(status.code(), status.message() + "; is the kernel module rdma_ucm loaded?");
  }
  CmChannel channel(handle);
  fcntl(handle->fd, F_SETFL, fcntl(handle->fd, F_GETFL) | O_NONBLOCK);
  fcntl(handle->fd, F_SETFD, FD_CLOEXEC);
  return channel;
}

std::optional<CmEvent> CmChannel::next() {
  pollfd ready{.fd = fd(), .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, 0) <= 0) return std::nullopt;
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(handle_.get(), &event) != 0) return std::nullopt;
  CmEvent taken{.type = event->event, .status = event->status, .id = event->id, .private_data = {}};
  const rdma_conn_param& parameters = event->param.conn;
  if (parameters.private_data != nullptr) {
    const auto* data = static_cast<const std::byte*>(parameters.private_data);
    taken.private_data.assign(data, data + parameters.private_data_len);
  }
  taken.responder_resources = parameters.responder_resources;
  taken.initiator_depth = parameters.initiator_depth;
  rdma_ack_cm_event(event);
  return taken;
}

std::optional<CmEvent> CmChannel::wait(TimeNs deadline) {
  while (true) {
    if (std::optional<CmEvent> event = next()) return event;
    const TimeNs left = deadline - now_ns();
    if (left <= 0) return std::nullopt;
    pollfd ready{.fd = fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, static_cast<int>(std::min<TimeNs>(left / kMillisecond + 1, INT_MAX)));
  }
}

Result<CmId> create_cm_id(CmChannel& channel) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel.handle(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return verbs_error(errno, "cannot create an rdma_cm id");
  }
  return CmId(id);
}

Status cm_error(int error_number, const std::string& what, const std::string& target) {
  const std::string text = what + " " + target + ": " + std::strerror(error_number);
  switch (error_number) {
    case ECONNREFUSED:
      return unavailable(text + "; is the server running there?");
    case EADDRINUSE:
      return {StatusCode::kAlreadyExists, text + "; choose another port, or 0 for a free one"};
    case ENODEV:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EADDRNOTAVAIL:
      return unavailable(text + "; no RDMA adapter has or reaches that address: `rdma link` shows the adapters, " +
                         "`ip route get` the interface that the address is reached by");
    case ETIMEDOUT:
      return unavailable(text + "; nothing answers there: check the address, the link and the firewall (UDP 4791)");
    default:
      return verbs_error(error_number, what + " " + target);
  }
}

namespace {

constexpr char kRefusalMagic[] = {'r', 'r', 'p', 'c', '!'};
constexpr size_t kRefusalBytesMax = 148;  // rdma_cm's room in a rejection

// InfiniBand's reasons (and RoCE's); iWARP gives negative errnos.
constexpr int kNobodyListens = 8;
constexpr int kStaleConnection = 10;

std::string refusal_text(const std::vector<std::byte>& data) {
  ByteReader reader(data);
  const Bytes magic = reader.take(sizeof(kRefusalMagic));
  const Bytes text = reader.take(reader.read<uint8_t>());
  if (reader.failed() || std::memcmp(magic.data(), kRefusalMagic, sizeof(kRefusalMagic)) != 0) return "";
  return one_line(as_text(text));
}

Status rejection(const CmEvent& event, const std::string& peer) {
  const std::string reason = refusal_text(event.private_data);
  if (!reason.empty()) return unavailable(peer + " refused the connection: " + reason);
  const bool nobody = event.status == kNobodyListens || event.status == -ECONNREFUSED;
  if (nobody) return unavailable("nobody listens on " + peer + " for rdma_cm; is the server running there?");
  if (event.status == kStaleConnection) {
    return unavailable(peer + " still knows an old connection of this queue pair; connect again");
  }
  return unavailable(peer + " rejected the connection (reason " + std::to_string(event.status) +
                     "); is it an rrpc server?");
}

}  // namespace

std::vector<std::byte> refusal_bytes(const std::string& reason) {
  std::vector<std::byte> data(kRefusalBytesMax);
  ByteWriter writer(data);
  writer.write(kRefusalMagic);
  const std::string_view text = cut_text(reason, kRefusalBytesMax - sizeof(kRefusalMagic) - 1);
  writer.write(static_cast<uint8_t>(text.size()));
  writer.write_bytes(as_bytes(text));
  data.resize(writer.used());
  return data;
}

Status set_traffic_class(rdma_cm_id* id, const Address& address) {
  if (!address.policy.traffic_class) return {};
  uint8_t traffic_class = *address.policy.traffic_class;
  if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class, sizeof(traffic_class)) == 0) return {};
  return cm_error(errno, "traffic_class=" + std::to_string(traffic_class) + " can't be set for", address.target);
}

Status cm_failure(const CmEvent& event, const std::string& peer) {
  const int error_number = event.status < 0 ? -event.status : event.status;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return cm_error(error_number, "cannot resolve the address", peer);
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return cm_error(error_number, "cannot resolve the route to", peer);
    case RDMA_CM_EVENT_UNREACHABLE:
      return unavailable(peer + " doesn't answer (" + std::strerror(error_number) +
                         "); check that the server runs, the link is up and UDP port 4791 is open for RoCE");
    case RDMA_CM_EVENT_REJECTED:
      return rejection(event, peer);
    case RDMA_CM_EVENT_CONNECT_ERROR:
      return unavailable("connecting with " + peer + " failed (" + std::strerror(error_number) + "); try again");
    case RDMA_CM_EVENT_DISCONNECTED:
      return unavailable("the peer " + peer + " closed the connection");
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return unavailable("the connection with " + peer + " is over");
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return unavailable("the adapter of the connection with " + peer + " was removed");
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return unavailable("the address by which " + peer + " was reached moved to another link; connect again");
    default:
      return unavailable("rdma_cm reports " + std::string(rdma_event_str(event.type)) + " for " + peer);
  }
}

}  // namespace rrpc::provider::verbs
