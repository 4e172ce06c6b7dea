// A client that comes again by another way, whom TLS has let in, and the limit on clients: it counts once, whichever of
// its connections it keeps. A fake verbs provider has an adapter.
#ifdef RRPC_TEST_CERTIFICATES  // this build has TLS

#include "driver/admissions.h"
#include "driver/tls.h"
#include "driver_pair.h"
#include "endpoint/counters.h"

namespace rrpc::driver::testing {
namespace {

Options with_tls(const std::string& whose) {
  Options options;
  options.files = test_certificates(whose);
  options.rdma_security = Protection::kSign;
  return options;
}

Options for_one_client() {
  Options options = with_tls("server");
  options.connections_max = 1;
  return options;
}

Status refusal(const std::string& address) {
  const auto client = Client::connect(address, with_tls("client"), patiently_ms(10'000));
  EXPECT_FALSE(client.ok());
  return client.status();
}

void expect_full(const std::string& address) {
  const Status why = refusal(address);
  EXPECT_EQ(why.code(), StatusCode::kResourceExhausted) << why.to_string();
  EXPECT_NE(why.message().find("connections_max: the server has 1 clients"), std::string::npos) << why.message();
}

bool lets_in(const std::string& address) {
  return Client::connect(address, with_tls("client"), patiently_ms(10'000)).ok();
}

// One connection of a client that moves as it likes.
ConnectionRef make_connection(const Address& address, const std::optional<Introduction>& introduction = {}) {
  const Options options = with_tls("client");
  Engine& engine = client_engine();
  EXPECT_TRUE(engine.start().ok());
  DeviceEntry& device = *find_device(address.scheme).value();
  auto config = endpoint::queue_pair_config(options.session.geometry);
  config.tls = tls_context(address, provider::TlsRole::kClient, options).value();
  auto cq = device.device->create_completion_queue(config.send_depth + config.receive_depth);
  auto qp = device.device->open(*cq, address.rest, config, patiently_ms(10'000)).value();
  auto connection = Connection::make(rpc::Role::kClient, engine.next_connection_id(), device, std::move(cq),
                                     std::move(qp), options, rpc::HelloFields{{"wire", "1"}}, nullptr);
  connection->engine = &engine;
  if (introduction)
    connection->introduced.emplace(*introduction, rpc::Role::kClient, address.scheme,
                                   address.scheme == "shm" ? Protection::kNone : Protection::kSign);
  return connection;
}

ConnectionRef dial(const Address& address, const std::optional<Introduction>& introduction = {}) {
  auto connection = make_connection(address, introduction);
  {
    std::lock_guard lock(connection->mutex);
    EXPECT_TRUE(connection->session().start(now_ns()).ok());
  }
  client_engine().add(connection);
  EXPECT_TRUE(eventually([&] { return connection->ready || connection->closed; }));
  return connection;
}

Status failure(const ConnectionRef& connection) {
  std::lock_guard lock(connection->mutex);
  return connection->session().failure();
}

void hang_up(const ConnectionRef& connection) {
  {
    std::lock_guard lock(connection->mutex);
    connection->session().close(unavailable("the test closes it"));
  }
  client_engine().see_off(connection);
}

int64_t open_connections() { return endpoint::total(&endpoint::Counters::connections_open); }

// Holds on to the connection that introduces it.
class MovingClient {
 public:
  explicit MovingClient(const std::string& address)
      : first_(dial({"tcp", address.substr(address.find("://") + 3), true})) {
    std::lock_guard lock(first_->mutex);
    introduction_ =
        introduction_by(first_->session().endpoint().queue_pair(),
                        tls_context({"tcp", "", true}, provider::TlsRole::kClient, with_tls("client")).value());
    EXPECT_TRUE(introduction_);
    hello_ = first_->session().peer_hello();
  }

  ConnectionRef move(const std::string& scheme) { return dial({scheme, hello_[scheme]}, introduction_); }
  const ConnectionRef& first() const { return first_; }

 private:
  const ConnectionRef first_;
  std::optional<Introduction> introduction_;
  rpc::HelloFields hello_;
};

class MovingClientsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    setenv("RRPC_VERBS_PLUGIN", RRPC_FAKE_VERBS_PLUGIN, 1);
    // Connections of an earlier test are destroyed behind it.
    ASSERT_TRUE(eventually([] { return open_connections() == 0; }));
  }
  void TearDown() override { unsetenv("RRPC_VERBS_PLUGIN"); }

  static std::string address() { return (GetParam() == "shm" ? "rrpcs" : GetParam()) + "://127.0.0.1:0"; }
};

TEST_P(MovingClientsTest, WhereOneIsAllowedOneMoves) {
  TestServer server(std::in_place, address(), 1, for_one_client());
  const auto client = connect_to(server.address(), with_tls("client"));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->info()["transport"], GetParam());
  for (int i = 0; i < 3; ++i) expect_full(server.address());
  TestCall call(*client, "echo", "hello", kNever, {});
  EXPECT_TRUE(call.wait().ok());
  client->close();
  EXPECT_TRUE(eventually([&] { return lets_in(server.address()); }));
}
INSTANTIATE_TEST_SUITE_P(All, MovingClientsTest, ::testing::Values("shm", "verbs", "verbs+tcp"), [](const auto& way) {
  return test_name(way.param == "verbs+tcp" ? "by_socket" : way.param, PollMode::kAdaptive);
});

using HostileMoves = MovingClientsTest;

TEST_P(HostileMoves, AConnectionThatIntroducedAnotherLeavesInTime) {
  Options options = for_one_client();
  options.handshake_timeout = 300 * kMillisecond;
  options.session.keepalive_interval = kNever;  // by which it is looked at, too
  TestServer server(std::in_place, address(), 1, options);
  MovingClient client(server.address());
  // No timer of its handshake is left then.
  const TimeNs later = now_ns() + 2 * options.handshake_timeout;
  ASSERT_TRUE(eventually([&] { return now_ns() > later; }));
  const ConnectionRef second = client.move(GetParam());
  ASSERT_TRUE(second->ready);
  expect_full(server.address());
  EXPECT_TRUE(eventually([&] { return client.first()->closed.load(); }));
  EXPECT_NE(failure(client.first()).message().find("has come again by another way"), std::string::npos);
  hang_up(client.first());
  ASSERT_TRUE(eventually([] { return open_connections() <= 4; }));
  expect_full(server.address());
  EXPECT_FALSE(second->closed) << "which counts";
  hang_up(second);
  EXPECT_TRUE(eventually([&] { return lets_in(server.address()); }));
}

TEST_P(HostileMoves, OneIntroductionLetsInOne) {
  Options options = for_one_client();
  options.connections_max = 3;
  TestServer server(std::in_place, address(), 1, options);
  MovingClient client(server.address());
  const ConnectionRef second = client.move(GetParam());
  ASSERT_TRUE(second->ready);
  const ConnectionRef third = client.move(GetParam());
  EXPECT_TRUE(eventually([&] { return third->closed.load(); }));
  EXPECT_EQ(failure(third).code(), StatusCode::kUnauthenticated) << failure(third).to_string();
  for (const ConnectionRef& connection : {client.first(), second, third}) hang_up(connection);
}

TEST_P(HostileMoves, AMoveThatFailsGivesThePlaceBack) {
  TestServer server(std::in_place, address(), 1, for_one_client());
  MovingClient client(server.address());
  {
    const ConnectionRef second = client.move(GetParam());
    ASSERT_TRUE(second->ready);
    hang_up(second);
  }
  ASSERT_TRUE(eventually([] { return open_connections() == 2; })) << "the first one's ends";
  expect_full(server.address());
  EXPECT_FALSE(client.first()->closed);
  hang_up(client.first());
  EXPECT_TRUE(eventually([&] { return lets_in(server.address()); }));
}
INSTANTIATE_TEST_SUITE_P(All, HostileMoves, ::testing::Values("shm", "verbs"),
                         [](const auto& way) { return test_name(way.param, PollMode::kAdaptive); });

// --- the numbers -------------------------------------------------------------------------------------

class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() : address_(parse_address(server_.address()).value()) {}

  ConnectionRef begin() {
    auto connection = make_connection(address_);
    admissions_.begin(connection, 0);
    return connection;
  }
  bool let_in(const ConnectionRef& connection, const ConnectionRef& introducer = nullptr) {
    return admissions_.establish(*connection, introducer, 17);
  }
  // How many more are let in.
  int places() {
    std::vector<ConnectionRef> in;
    for (ConnectionRef next = begin(); let_in(next); next = begin()) in.push_back(next);
    for (const ConnectionRef& one : in) admissions_.end(*one);
    return static_cast<int>(in.size());
  }

  TestServer server_{"tcp"};
  const Address address_;
  Admissions admissions_{100, 3};
};

TEST_F(PlacesTest, EachBeyondTheFirstCountsForItself) {
  const ConnectionRef first = begin();
  ASSERT_TRUE(let_in(first));
  std::vector<ConnectionRef> introduced;
  for (int i = 0; i < 3; ++i) {
    introduced.push_back(begin());
    ASSERT_TRUE(let_in(introduced.back(), first));
    EXPECT_EQ(places(), 2 - i);
  }
  EXPECT_FALSE(let_in(begin(), first));
  EXPECT_FALSE(first->counted);
  EXPECT_EQ(first->leave_at, 17);
  for (const ConnectionRef& one : introduced) admissions_.end(*one);
  EXPECT_EQ(places(), 2) << "the introducer is there still, and has its place again, once";
  EXPECT_EQ(first->leave_at, kNever);
  admissions_.end(*first);
  EXPECT_EQ(places(), 3);
}

TEST_F(PlacesTest, APlaceIsGivenBackOnce) {
  const ConnectionRef first = begin();
  ASSERT_TRUE(let_in(first));
  const ConnectionRef second = begin();
  ASSERT_TRUE(let_in(second, first));
  for (int i = 0; i < 2; ++i) admissions_.end(*first);
  EXPECT_EQ(places(), 2);
  for (int i = 0; i < 2; ++i) admissions_.end(*second);
  EXPECT_EQ(places(), 3);
}

TEST_F(PlacesTest, OneWhoseIntroducerIsGoneCountsForItself) {
  const ConnectionRef first = begin();
  ASSERT_TRUE(let_in(first));
  admissions_.end(*first);
  const ConnectionRef second = begin();
  ASSERT_TRUE(let_in(second, first));
  EXPECT_EQ(places(), 2);
  admissions_.end(*second);
  EXPECT_EQ(places(), 3);
}

TEST_F(PlacesTest, AnIntroducerIsTheFirstToMakePlaceForAHandshake) {
  const ConnectionRef first = begin();
  ASSERT_TRUE(let_in(first));
  const ConnectionRef second = begin();
  ASSERT_TRUE(let_in(second, first));
  const TimeNs now = kSecond;
  const ConnectionRef third = make_connection(address_);
  admissions_.begin(third, now);
  TimeNs may_go_at = 0;
  EXPECT_EQ(admissions_.take_oldest(now, 100 * kMillisecond, may_go_at), first);
  EXPECT_EQ(admissions_.take_oldest(now, 100 * kMillisecond, may_go_at), nullptr) << "the next has its time";
  admissions_.end(*second);
  EXPECT_FALSE(first->counted) << "it is being closed";
  EXPECT_EQ(places(), 3);
}

}  // namespace
}  // namespace rrpc::driver::testing
#endif
