#include "provider/verbs/socket_connector.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "provider/verbs/bring_up.h"
#include "provider/verbs/ece.h"
#include "provider/verbs/errors.h"

namespace rrpc::provider::verbs {
namespace {

constexpr size_t kCheckBytes = 4096;  // a packet of the largest MTU
constexpr uint32_t kDepthMax = 255;
constexpr uint32_t kPacketSequenceMask = 0xffffff;

template <typename T>
T random_value() {
  T value{};
  if (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) value = static_cast<T>(now_ns());
  return value;
}

void fill_check(std::byte* memory, uint64_t seed) {
  for (size_t at = 0; at < kCheckBytes; at += sizeof(seed)) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory + at, &seed, sizeof(seed));
  }
}

bool is_filled(const std::byte* memory, uint64_t seed) {
  std::byte expected[kCheckBytes];
  fill_check(expected, seed);
  return std::memcmp(memory, expected, kCheckBytes) == 0;
}

}  // namespace

Result<std::unique_ptr<Connector>> SocketConnector::open(const Address& address, TimeNs deadline) {
  RRPC_RETURN_IF_ERROR(Adapters::process().any_usable());
  RRPC_ASSIGN_OR_RETURN(auto candidates, resolve(address.target, ResolveFor::kConnect, deadline));
  RRPC_ASSIGN_OR_RETURN(UniqueFd fd, dial(address.target, std::move(candidates), deadline));
  FrameSocket socket(std::move(fd));
  RRPC_ASSIGN_OR_RETURN(Place place, choose_place(address, local_address(socket.fd())));
  return std::unique_ptr<Connector>(new SocketConnector(std::move(socket), std::move(place), address.target, false));
}

Result<std::unique_ptr<Connector>> SocketConnector::answer(FrameSocket socket, const Introduction& peer,
                                                           const Address& address) {
  Result<Place> place = choose_place(address, local_address(socket.fd()));
  if (!place.ok()) {
    socket.send(goodbye_frame(place.status().message()));
    socket.finish();
    return place.status();
  }
  const std::string name = peer_address(socket.fd()).to_string();
  std::unique_ptr<SocketConnector> made(new SocketConnector(std::move(socket), std::move(place).value(), name, true));
  made->peer_ = peer;
  return std::unique_ptr<Connector>(std::move(made));
}

SocketConnector::~SocketConnector() { destroy_queue_pair(); }

Bytes SocketConnector::peer_private_data() const {
  const bool known = server_ || phase_ == Phase::kConnected;
  return known ? Bytes(peer_.private_data) : Bytes();
}

void SocketConnector::append_wait_handles(std::vector<WaitHandle>& out) const {
  if (phase_ != Phase::kEnded) out.push_back({socket_.fd(), socket_.wants_write()});
}

Result<ibv_qp*> SocketConnector::create_queue_pair(ibv_pd* domain, ibv_qp_init_attr& attributes) {
  ibv_qp* made = ibv_create_qp(domain, &attributes);
  error_ = made != nullptr ? bring_to_init(made, place_)
                           : verbs_error(errno, "cannot create a queue pair on " + place_.adapter->name());
  if (!error_.ok()) {
    if (made != nullptr) ibv_destroy_qp(made);
    return error_;
  }
  domain_ = domain;
  queue_pair_ = made;
  return made;
}

void SocketConnector::destroy_queue_pair() {
  if (phase_ != Phase::kEnded) disconnect(error_.ok() ? "closed" : error_.message());
  if (queue_pair_ != nullptr) ibv_destroy_qp(queue_pair_);
  queue_pair_ = nullptr;
  forget_check();
}

Status SocketConnector::start(Bytes private_data, uint32_t read_depth) {
  if (private_data.size() > kPrivateDataBytesMax) {
    return invalid_argument("private data of " + std::to_string(private_data.size()) + " bytes; at most " +
                            std::to_string(kPrivateDataBytesMax) + " fit");
  }
  if (phase_ != Phase::kInit) return phase_ == Phase::kEnded ? error_ : failed_precondition("already started");
  const ibv_device_attr& device = place_.adapter->attributes();
  const auto depth = [&](int most) {
    return std::clamp(std::min(read_depth, static_cast<uint32_t>(std::max(most, 1))), 1u, kDepthMax);
  };
  responder_resources_ = depth(device.max_qp_rd_atom);
  initiator_depth_ = depth(device.max_qp_init_rd_atom);
  own_.queue_pair = queue_pair_->qp_num;
  own_.packet_sequence = random_value<uint32_t>() & kPacketSequenceMask;
  own_.lid = place_.port_attributes.lid;
  own_.link_layer = place_.port_attributes.link_layer;
  own_.mtu = static_cast<uint8_t>(place_.port_attributes.active_mtu);
  own_.gid = place_.gid.raw;
  own_.not_ready_retries = place_.adapter->not_ready_retries();
  RRPC_ASSIGN_OR_RETURN(own_.ece, query_ece(queue_pair_));
  own_.private_data.assign(private_data.begin(), private_data.end());
  if (server_) {
    if (Status status = meet(peer_); !status.ok()) {
      end(status, status.message());
      return error_;
    }
  }
  own_.responder_resources = static_cast<uint16_t>(responder_resources_);
  own_.initiator_depth = static_cast<uint16_t>(initiator_depth_);
  socket_.send(introduction_frame(own_));
  phase_ = Phase::kConnecting;
  return {};
}

// With the peer's introduction known: what both can do, and the queue pair ready to use.
Status SocketConnector::meet(const Introduction& peer) {
  peer_ = peer;
  if (peer.link_layer != own_.link_layer) {
    return failed_precondition("one end's adapter is on Ethernet, the other's on InfiniBand; choose with ?device=");
  }
  responder_resources_ = std::max(1u, std::min<uint32_t>(responder_resources_, peer.initiator_depth));
  initiator_depth_ = std::max(1u, std::min<uint32_t>(initiator_depth_, peer.responder_resources));
  RRPC_RETURN_IF_ERROR(prepare_check(server_ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE));
  RRPC_ASSIGN_OR_RETURN(own_.ece,
                        bring_to_rts(queue_pair_, place_, {own_, peer_, responder_resources_, initiator_depth_}));
  return {};
}

Status SocketConnector::prepare_check(int access) {
  RRPC_ASSIGN_OR_RETURN(check_memory_, AnonymousMapping::create(kCheckBytes));
  check_region_ = ibv_reg_mr(domain_, check_memory_.data(), kCheckBytes, access);
  if (check_region_ == nullptr) return verbs_error(errno, "cannot register memory");
  if (server_) {
    own_.check_seed = random_value<uint64_t>();
    fill_check(check_memory_.data(), own_.check_seed);
    own_.check_address = reinterpret_cast<uint64_t>(check_memory_.data());
    own_.check_rkey = check_region_->rkey;
  }
  return {};
}

Status SocketConnector::read_check() {
  ibv_sge sink{
      .addr = reinterpret_cast<uint64_t>(check_memory_.data()), .length = kCheckBytes, .lkey = check_region_->lkey};
  ibv_send_wr request{};
  request.wr_id = kConnectorWorkRequest;
  request.sg_list = &sink;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_.check_address;
  request.wr.rdma.rkey = peer_.check_rkey;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue_pair_, &request, &refused);
  return error == 0 ? Status() : verbs_error(error, "cannot post a READ");
}

void SocketConnector::forget_check() {
  if (check_region_ != nullptr) ibv_dereg_mr(check_region_);
  check_region_ = nullptr;
  check_memory_ = {};
}

void SocketConnector::completed(const ibv_wc& completion) {
  if (phase_ != Phase::kConnecting) return;
  if (completion.status != IBV_WC_SUCCESS || !is_filled(check_memory_.data(), peer_.check_seed)) {
    const std::string what = completion.status != IBV_WC_SUCCESS ? ibv_wc_status_str(completion.status) : "wrong bytes";
    const Status status =
        unavailable("RDMA with " + peer_name_ + " doesn't work from GID " + place_.gid.text + " (index " +
                    std::to_string(place_.gid.index) + " of " + place_.adapter->name() + "): " + what +
                    "; choose GIDs of one network with ?gid= on both ends, and see that the path carries the MTU");
    return end(status, status.message());
  }
  forget_check();
  socket_.send(ready_frame());
  phase_ = Phase::kConnected;
}

void SocketConnector::drive() {
  socket_.flush();
  while (phase_ != Phase::kEnded) {
    const Result<std::optional<Frame>> frame = socket_.receive();
    if (!frame.ok()) {
      const Status& status = frame.status();
      return end(status.is_protocol_error() ? status : unavailable(status.message() + " (" + peer_name_ + ")"),
                 status.message());
    }
    if (!frame->has_value()) return;
    handle(**frame);
  }
}

void SocketConnector::handle(const Frame& frame) {
  if (frame.kind == FrameKind::kGoodbye) {
    const char* what = phase_ == Phase::kConnected ? " closed the connection: " : " refused the connection: ";
    return end(unavailable("the peer " + peer_name_ + what + goodbye_reason(frame)), "");
  }
  const bool introduced = peer_.queue_pair != 0;
  if (phase_ == Phase::kConnecting && server_ && frame.kind == FrameKind::kReady) {
    forget_check();
    phase_ = Phase::kConnected;
    return;
  }
  Status status = Status::protocol_error("the peer " + peer_name_ + " sent a message out of turn");
  if (phase_ == Phase::kConnecting && !server_ && !introduced && frame.kind == FrameKind::kIntroduction) {
    const Result<Introduction> peer = parse_introduction(frame);
    status = peer.ok() ? meet(*peer) : peer.status();
    if (status.ok()) status = read_check();
  }
  if (!status.ok()) end(status, status.message());
}

void SocketConnector::end(Status error, const std::string& told) {
  phase_ = Phase::kEnded;
  error_ = std::move(error);
  if (!told.empty()) socket_.send(goodbye_frame(told));
  socket_.finish();
  if (queue_pair_ != nullptr) bring_to_error(queue_pair_);
}

void SocketConnector::disconnect(const std::string& reason) {
  if (phase_ == Phase::kEnded) return;
  end(unavailable("the connection with " + peer_name_ + " was closed here: " + reason), reason);
}

}  // namespace rrpc::provider::verbs
