// A peer that sends whatever bytes it likes to a real session, over the simulated network.
#pragma once

#include "endpoint/header.h"
#include "session_world.h"

namespace rrpc::rpc {

class RawPeer {
 public:
  static constexpr uint32_t kSlots = 64;
  static constexpr uint32_t kSlotBytes = 1024;
  static constexpr uint32_t kEpoch = 99;

  explicit RawPeer(World& world, const std::string& host)
      : device_(world.network.create_device(host)),
        cq_(device_->create_completion_queue(4096)),
        memory_(size_t{2} * kSlots * kSlotBytes),
        region_(device_->register_memory({memory_.data(), memory_.size()}).value()) {}

  void dial(const endpoint::Offer& offer) {
    qp_ = device_->open(*cq_, "server:1", {}, kNever).value();
    start(offer);
  }
  bool accept(provider::Listener& listener, const endpoint::Offer& offer) {
    qp_ = listener.accept(*cq_, {}).value();
    if (qp_) start(offer);
    return qp_ != nullptr;
  }
  static endpoint::Offer offer() {
    endpoint::Offer made;
    made.slots = kSlots;
    made.slot_bytes = kSlotBytes;
    made.epoch = kEpoch;
    return made;
  }

  endpoint::MessageHeader header(uint8_t type, size_t body_bytes) const {
    endpoint::MessageHeader made;
    made.type = type;
    made.body_bytes = static_cast<uint32_t>(body_bytes);
    made.epoch = kEpoch;
    made.data_granted = data_seen_;
    made.control_granted = control_seen_;
    return made;
  }
  void send(const endpoint::MessageHeader& header, std::string_view body) {
    std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
    send_bytes(message.append(body));
  }
  void send(uint8_t type, std::string_view body) { send(header(type, body.size()), body); }
  void send_bytes(std::string_view message) {
    std::byte* slot = memory_.data() + size_t{kSlots + next_++ % kSlots} * kSlotBytes;
    ASSERT_LE(message.size(), kSlotBytes);
    std::memcpy(slot, message.data(), message.size());
    const provider::Sge sge{slot, static_cast<uint32_t>(message.size()), region_.get()};
    const provider::WorkRequest request{.wr_id = 1000, .sges = {&sge, 1}};
    const Status status = qp_->post_send({&request, 1});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // What came since the last call; its slots are posted anew.
  struct Message {
    endpoint::MessageHeader header;
    std::string body;
  };
  std::vector<Message> take() {
    std::vector<Message> messages;
    std::array<provider::Completion, 64> batch;
    const size_t count = cq_->poll(batch);
    for (size_t i = 0; i < count; ++i) {
      if (batch[i].opcode != provider::Opcode::kReceive || batch[i].status != provider::WcStatus::kSuccess) continue;
      const std::byte* slot = batch[i].place;
      if (slot == nullptr) slot = memory_.data() + batch[i].wr_id * kSlotBytes;
      Message message;
      std::memcpy(&message.header, slot, sizeof(message.header));
      message.body.assign(reinterpret_cast<const char*>(slot) + sizeof(message.header), message.header.body_bytes);
      const auto message_class = endpoint::class_of(message.header.type);
      if (message_class == endpoint::MessageClass::kData) ++data_seen_;
      if (message_class == endpoint::MessageClass::kControl) ++control_seen_;
      messages.push_back(std::move(message));
      post(static_cast<uint32_t>(batch[i].wr_id));
    }
    return messages;
  }
  // Memory of the peer's with these bytes, or zeros, which the session may read.
  std::pair<uint64_t, uint32_t> expose_some(const std::string& bytes = std::string(100, '\0')) {
    exposed_.assign(bytes.begin(), bytes.end());
    exposed_region_ =
        device_->register_memory({reinterpret_cast<std::byte*>(exposed_.data()), exposed_.size()}).value();
    auto* const address = reinterpret_cast<std::byte*>(exposed_.data());
    EXPECT_TRUE(qp_->adopt(*exposed_region_).ok());
    const uint32_t rkey = qp_->expose(*exposed_region_, address, exposed_.size(), provider::kRemoteRead).value();
    return {reinterpret_cast<uint64_t>(address), rkey};
  }
  bool connected() const { return qp_ && qp_->state() == provider::QueuePairState::kConnected; }
  provider::QueuePair& qp() { return *qp_; }
  provider::MemoryRegion& region() { return *region_; }

 private:
  void post(uint32_t slot) {
    const provider::Sge sge{memory_.data() + size_t{slot} * kSlotBytes, kSlotBytes, region_.get()};
    (void)qp_->post_receive({slot, sge});
  }
  void start(const endpoint::Offer& offer) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) post(slot);
    ASSERT_TRUE(qp_->start(std::as_bytes(std::span(&offer, 1))).ok());
  }

  std::unique_ptr<provider::Device> device_;
  std::unique_ptr<provider::CompletionQueue> cq_;
  std::vector<std::byte> memory_;
  std::unique_ptr<provider::MemoryRegion> region_;
  std::vector<char> exposed_;
  std::unique_ptr<provider::MemoryRegion> exposed_region_;
  std::unique_ptr<provider::QueuePair> qp_;
  uint32_t next_ = 0;
  uint32_t data_seen_ = 0;
  uint32_t control_seen_ = 0;
};

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline std::string ids(std::initializer_list<uint64_t> list) {
  std::string text;
  for (const uint64_t id : list) text += bytes_of(id);
  return text;
}
inline std::string hello() { return encode_hello({{"wire", "1"}}); }

struct RequestParts {
  uint64_t call_id = 1;
  std::vector<endpoint::Descriptor> descriptors;
  bool has_out = false;
  std::string method = "m";
  std::string metadata = "";
  std::string payload = "p";
  TimeNs timeout_ns = -1;
};
inline std::string request_body(const RequestParts& parts) {
  RequestFixed fixed;
  fixed.call_id = parts.call_id;
  fixed.timeout_ns = parts.timeout_ns;
  fixed.method_bytes = static_cast<uint16_t>(parts.method.size());
  fixed.flags = parts.has_out ? kOutFirst : 0;
  fixed.metadata_bytes = static_cast<uint16_t>(parts.metadata.size());
  fixed.descriptor_count = static_cast<uint16_t>(parts.descriptors.size() - (parts.has_out ? 1 : 0));
  return bytes_of(fixed) + encode_descriptors(parts.descriptors) + parts.method + parts.metadata + parts.payload;
}
inline std::string request_body(uint64_t call_id) {
  RequestParts parts;
  parts.call_id = call_id;
  return request_body(parts);
}
inline std::string request_body(std::vector<endpoint::Descriptor> descriptors) {
  RequestParts parts;
  parts.descriptors = std::move(descriptors);
  return request_body(parts);
}

inline std::string reply_body(ReplyFixed fixed, const std::vector<endpoint::Descriptor>& descriptors = {},
                              const std::string& rest = "") {
  fixed.descriptor_count = static_cast<uint16_t>(descriptors.size());
  return bytes_of(fixed) + encode_descriptors(descriptors) + rest;
}
inline std::string reply_body(uint64_t call_id) {
  ReplyFixed fixed;
  fixed.call_id = call_id;
  return reply_body(fixed);
}

// A session of one role against a raw peer. `session()` is the one under test.
struct RawWorld {
  explicit RawWorld(Role session_role, const endpoint::Offer& offer = RawPeer::offer(),
                    const SessionOptions& options = {})
      : role(session_role), world(1), peer(world, role == Role::kServer ? "client" : "server") {
    world.network.record_trace(true);
    world.server_options = options;
    if (role == Role::kServer) {
      world.server.request = [this](const ServerCallRef& call) { requests.push_back(call); };
      peer.dial(offer);
    } else {
      world.listener = peer_listener();
      world.server.dead = true;  // the raw peer stands in its place
      world.dial(options);
      while (!peer.connected() && world.network.step())
        if (!accepted) accepted = peer.accept(*world.listener, offer);
    }
    run();
  }
  std::unique_ptr<provider::Listener> peer_listener() {
    world.listener.reset();
    return world.server.device->listen("server:1", {}).value();
  }
  SessionEnd& end() { return role == Role::kServer ? world.server : world.client; }
  Session& session() { return *end().session; }
  // Lets what was sent arrive before the session polls for it.
  void arrive_together() {
    end().dead = true;
    world.network.run_for(kMillisecond);
    end().dead = false;
  }
  std::vector<RawPeer::Message> run() {
    std::vector<RawPeer::Message> messages;
    if (end().session) end().pump(world.network.now());
    for (int i = 0; i < 3; ++i) {
      const TimeNs until = world.network.now() + kMillisecond;
      while (world.network.next_event_time() <= until) {
        world.network.step();
        if (role == Role::kServer) world.accept_waiting();
        end().pump(world.network.now());
        for (auto& message : peer.take()) messages.push_back(std::move(message));
      }
      world.network.run_until(until);
    }
    return messages;
  }
  // As the handler of a request with streams.
  void send_items(size_t request, int count) {
    for (int i = 0; i < count; ++i) {
      OutgoingItem item{as_bytes("i")};
      EXPECT_TRUE(session().streams().send(requests[request]->stream(), item).value());
    }
  }
  ClientCallRef start_call(std::optional<endpoint::Buffer> out = std::nullopt) {
    auto call = std::make_shared<ClientCall>();
    CallRequest request{"m", as_bytes("p"), {}, std::move(out), kNever};
    const Status status = session().client().start(call, std::move(request), world.network.now());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return call;
  }

  const Role role;
  World world;
  RawPeer peer;
  std::vector<ServerCallRef> requests;
  bool accepted = false;
};

// A client that has shaken hands.
struct RawClient : RawWorld {
  explicit RawClient(const SessionOptions& options = {}) : RawWorld(Role::kClient, RawPeer::offer(), options) {
    peer.send(kHello, hello());
    run();
    EXPECT_TRUE(end().ready);
  }
  endpoint::Descriptor expose(size_t length_bytes) {
    std::byte* address = peer.region().range().address;
    return {reinterpret_cast<uint64_t>(address), length_bytes,
            peer.qp().expose(peer.region(), address, length_bytes, provider::kRemoteRead).value()};
  }
};

}  // namespace rrpc::rpc
