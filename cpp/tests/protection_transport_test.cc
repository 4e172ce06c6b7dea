// Protected sessions over shared memory and TCP: long arguments and results, streams, and one of several connections
// that is tampered with. The ends take turns in one thread.
#include <unistd.h>

#include <ostream>

#include "base/clock.h"
#include "provider/shm/shm_device.h"
#include "provider/tcp/tcp_device.h"
#include "session_world.h"

namespace rrpc::rpc {
namespace {

using provider::Protection;

struct Case {
  std::string transport;
  Protection mode;
};
std::string name_of(const Case& one) { return one.transport + "_" + std::string(protection_name(one.mode)); }
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << name_of(one); }

struct End : SessionEvents {
  explicit End(const Case& its_case) : mode(its_case.mode) {
    device = its_case.transport == "shm" ? provider::create_shm_device() : provider::create_tcp_device();
    registrations = std::make_unique<endpoint::RegistrationCache>(*device, client_pool(), 1 << 20);
  }
  void make(Role role, std::unique_ptr<provider::CompletionQueue> cq, std::unique_ptr<provider::QueuePair> qp) {
    session = std::make_unique<Session>(role, endpoint::DeviceContext{*device, client_pool(), *registrations},
                                        std::move(cq), std::move(qp), SessionOptions(), 1, HelloFields(), *this);
    const Status status = session->start(now_ns());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void on_ready() override {
    session->protect(mode, ciphers(), secret);
    ready = true;
  }
  void on_closed(const Status& why) override { closed_with = why; }
  void on_call_done(const ClientCallRef&) override {}
  void on_request(const ServerCallRef& call) override {
    Reply reply;
    if (call->stream() != nullptr) return streaming.push_back(call);
    reply.payload = call->payload();
    for (const endpoint::ReceivedBlock& block : call->blocks()) {
      auto hold = std::make_unique<TestHold>(block.size(), nullptr, endpoint::kNoOwner);
      if (block.size() > 0) std::memcpy(hold->bytes.data(), block.data(), block.size());
      std::byte* const data = hold->bytes.data();
      reply.buffers.push_back({data, block.size(), endpoint::kNoOwner, std::move(hold), {}});
    }
    if (call->metadata().size() == 1) reply.out_index = 0;
    session->server().reply(call, std::move(reply), now_ns());
  }

  const Protection mode;
  provider::ExportedKey secret{};
  std::unique_ptr<provider::Device> device;
  std::unique_ptr<endpoint::RegistrationCache> registrations;
  std::vector<ServerCallRef> streaming;
  bool ready = false;
  Status closed_with;
  std::unique_ptr<Session> session;  // whose end still tells of things
};

class OverATransport : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (ciphers() == nullptr) GTEST_SKIP() << "this build has no ciphers";
    const std::string path = "/tmp/rrpc-protection-test." + std::to_string(getpid());
    listener_ = listening_.device->listen(GetParam().transport == "shm" ? path : "127.0.0.1:0", {}).value();
    connect();
  }
  // One more client, and the server's end of it.
  void connect() {
    const auto config = endpoint::queue_pair_config({});
    End& client = *clients_.emplace_back(std::make_unique<End>(GetParam()));
    client.secret.fill(std::exchange(next_secret_, std::byte{0}));
    End& server = *servers_.emplace_back(std::make_unique<End>(GetParam()));
    auto at_client = client.device->create_completion_queue(1024);
    auto at_server = server.device->create_completion_queue(1024);
    auto dialled = client.device->open(*at_client, listener_->address(), config, now_ns() + kSecond).value();
    client.make(Role::kClient, std::move(at_client), std::move(dialled));
    std::unique_ptr<provider::QueuePair> accepted;
    while (accepted == nullptr) {
      accepted = listener_->accept(*at_server, config).value();
      (void)client.session->progress(now_ns());
    }
    server.make(Role::kServer, std::move(at_server), std::move(accepted));
    ASSERT_TRUE(until([&] { return client.ready && server.ready; }));
  }
  template <typename Predicate>
  bool until(Predicate done) {
    for (const TimeNs end = now_ns() + 20 * kSecond; now_ns() < end;) {
      for (const auto& one : clients_) (void)one->session->progress(now_ns());
      for (const auto& one : servers_) (void)one->session->progress(now_ns());
      if (done()) return true;
    }
    return false;
  }
  ClientCallRef start(std::vector<endpoint::Buffer> buffers, std::optional<endpoint::Buffer> out = std::nullopt,
                      const std::string& payload = "payload", size_t client = 0) {
    auto call = std::make_shared<ClientCall>();
    const std::string_view metadata = out ? "o" : "";
    CallRequest request{"m", as_bytes(payload), std::move(buffers), std::move(out), kNever, as_bytes(metadata)};
    const Status status = clients_[client]->session->client().start(call, std::move(request), now_ns());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return call;
  }
  void others_go_on() {
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(pattern_buffer(100'000, 1, 1));
    finish(start(std::move(buffers), std::nullopt, "payload", 1));
  }
  void finish(const ClientCallRef& call) {
    EXPECT_TRUE(until([&] { return call->done(); }));
    EXPECT_TRUE(call->status().ok()) << call->status().to_string();
  }

  std::byte next_secret_{0};  // of the next client alone
  End listening_{GetParam()};
  std::unique_ptr<provider::Listener> listener_;
  std::vector<std::unique_ptr<End>> clients_, servers_;
};

INSTANTIATE_TEST_SUITE_P(Protection, OverATransport,
                         ::testing::Values(Case{"shm", Protection::kSign}, Case{"shm", Protection::kEncrypt},
                                           Case{"tcp", Protection::kSign}, Case{"tcp", Protection::kEncrypt}),
                         [](const auto& tested) { return name_of(tested.param); });

TEST_P(OverATransport, BuffersOfAllLengthsGoThereAndBack) {
  const int holds = TestHold::live();
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{16 << 10}, size_t{200'000}, size_t{5} << 20, size_t{40} << 20}) {
    std::vector<endpoint::Buffer> buffers;
    buffers.push_back(pattern_buffer(length, length, 1));
    buffers.push_back(pattern_pieces(length + 9, 5, length, 2));
    const ClientCallRef call = start(std::move(buffers));
    finish(call);
    ASSERT_EQ(call->blocks().size(), 2u);
    EXPECT_TRUE(has_pattern({call->blocks()[0].data(), call->blocks()[0].size()}, length, 1)) << length;
    EXPECT_TRUE(has_pattern({call->blocks()[1].data(), call->blocks()[1].size()}, length, 2)) << length;
    EXPECT_EQ(call->blocks()[0].size(), length);
  }
  EXPECT_TRUE(until([&] { return TestHold::live() == holds; })) << "memory was not let go";
}

TEST_P(OverATransport, LongMessagesAndOutMemory) {
  const std::string payload = pattern(3'000'000, 1, 1);
  const ClientCallRef call = start({}, std::nullopt, payload);
  finish(call);
  EXPECT_EQ(as_text(call->payload()), payload);
  endpoint::Buffer out = pattern_buffer(3 << 20, 0, 0);
  const auto hold = out.hold;
  std::vector<endpoint::Buffer> buffers;
  buffers.push_back(pattern_buffer(3 << 20, 5, 5));
  finish(start(std::move(buffers), std::move(out)));
  EXPECT_TRUE(has_pattern(static_cast<TestHold*>(hold.get())->bytes, 5, 5));
}

TEST_P(OverATransport, ItemsWithAndWithoutBuffers) {
  const auto call = std::make_shared<ClientCall>();
  CallRequest request{"m", {}, {}, std::nullopt, kNever};
  request.kind = kClientStreams;
  ASSERT_TRUE(clients_[0]->session->client().start(call, std::move(request), now_ns()).ok());
  ASSERT_TRUE(until([&] { return !servers_[0]->streaming.empty(); }));
  const StreamRef from = call->stream();
  const StreamRef to = servers_[0]->streaming[0]->stream();
  constexpr size_t kItems = 300;
  size_t sent = 0, taken = 0;
  EXPECT_TRUE(until([&] {
    while (sent < kItems) {
      const std::string payload = pattern(sent % 50 == 49 ? 20000 : 10, sent, 1);
      OutgoingItem item{as_bytes(payload), {}};
      if (sent % 3 == 0) item.buffers.push_back(pattern_buffer(sent % 7 == 0 ? 300'000 : 1000, sent, 2));
      if (!clients_[0]->session->streams().send(from, item).value()) break;
      ++sent;
    }
    std::vector<Item> items;
    servers_[0]->session->streams().take(to, 100, items);
    for (Item& item : items) {
      EXPECT_TRUE(has_pattern(item.payload(), taken, 1)) << taken;
      EXPECT_EQ(item.blocks().size(), taken % 3 == 0 ? 1u : 0u);
      for (const endpoint::ReceivedBlock& block : item.blocks())
        EXPECT_TRUE(has_pattern({block.data(), block.size()}, taken, 2)) << taken;
      ++taken;
    }
    return taken == kItems;
  }));
  clients_[0]->session->streams().finish(from);
  servers_[0]->session->server().reply(servers_[0]->streaming[0], {}, now_ns());
  finish(call);
}

TEST_P(OverATransport, OneWithAWrongKeyEndsAndOthersGoOn) {
  clients_.clear();
  servers_.clear();
  next_secret_ = std::byte{1};
  connect();
  const ClientCallRef wrong = start({});
  EXPECT_TRUE(until([&] { return wrong->done(); }));
  EXPECT_FALSE(wrong->status().ok());
  EXPECT_NE(servers_[0]->closed_with.message().find("message 1 from the peer fails its authentication tag"),
            std::string::npos)
      << servers_[0]->closed_with.to_string();
  connect();
  others_go_on();
}

TEST_P(OverATransport, OneThatIsTamperedWithEndsAndOthersGoOn) {
  connect();
  std::vector<endpoint::Buffer> buffers;
  buffers.push_back(pattern_buffer(3'000'000, 1, 1));  // more than goes with the message
  std::byte* const data = buffers[0].data;
  const ClientCallRef attacked = start(std::move(buffers));
  data[2'999'999] ^= std::byte{1};
  EXPECT_TRUE(until([&] { return attacked->done(); }));
  // What is encrypted is a copy, which this doesn't reach.
  EXPECT_EQ(attacked->status().ok(), GetParam().mode == Protection::kEncrypt);
  EXPECT_EQ(servers_[0]->closed_with.message().find("authentication tag") != std::string::npos,
            GetParam().mode == Protection::kSign)
      << servers_[0]->closed_with.to_string();
  others_go_on();
}

}  // namespace
}  // namespace rrpc::rpc
