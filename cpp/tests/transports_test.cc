// How the verbs provider is loaded, and which transport rrpc:// comes to. A fake verbs provider has an adapter.

#include <cstdlib>

#include "driver/devices.h"
#include "driver/offers.h"
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

Options only(std::vector<std::string> transports) {
  Options options;
  options.transports = std::move(transports);
  return options;
}

class TransportsTest : public ::testing::Test {
 protected:
  Variable plugin_{"RRPC_VERBS_PLUGIN", RRPC_FAKE_VERBS_PLUGIN};
};

std::string why_no_verbs(const std::string& plugin) {
  const Variable variable("RRPC_VERBS_PLUGIN", plugin);
  return find_device("verbs").status().message();
}

// First, since what was loaded stays.
TEST(VerbsPluginTest, ARefusalSaysWhyAndIsAskedAgain) {
  EXPECT_NE(why_no_verbs("/no/such/_verbs.so").find("no verbs provider (there is no /no/such/_verbs.so)"),
            std::string::npos);
  EXPECT_NE(why_no_verbs("/etc/passwd").find("can't be loaded from /etc/passwd"), std::string::npos);
  EXPECT_NE(why_no_verbs("/proc/self/exe").find("can't be loaded"), std::string::npos);
  {
    const Variable mood("RRPC_FAKE_VERBS", "refused");
    EXPECT_EQ(why_no_verbs(RRPC_FAKE_VERBS_PLUGIN), "verbs:// can't be had: fake0: port 1 is down");
    const Variable plugin("RRPC_VERBS_PLUGIN", RRPC_FAKE_VERBS_PLUGIN);
    ASSERT_EQ(describe_adapters().size(), 1u);
    EXPECT_EQ(describe_adapters()[0]["why_not"], "port 1 is down");
  }
  EXPECT_EQ(why_no_verbs(RRPC_FAKE_VERBS_PLUGIN), "");
  EXPECT_EQ(why_no_verbs("/no/such/_verbs.so"), "") << "what was loaded is kept";
}

TEST_F(TransportsTest, TheOrderOfTheOptionDecides) {
  TestServer server("rrpc");
  const auto transport = [&](std::vector<std::string> order) {
    return connect_to(server.address(), only(std::move(order)))->info()["transport"];
  };
  EXPECT_EQ(transport({"shm", "verbs", "tcp"}), "shm");
  EXPECT_EQ(transport({"verbs", "shm", "tcp"}), "verbs");
  EXPECT_EQ(transport({"verbs"}), "verbs");
  EXPECT_EQ(transport({"tcp", "verbs"}), "tcp");
}

TEST_F(TransportsTest, CallsWorkOverWhatWasChosen) {
  TestServer server("rrpc");
  auto client = connect_to(server.address(), only({"verbs", "tcp"}));
  TestCall call(*client, "echo", "hello", kNever, {});
  ASSERT_TRUE(call.wait().ok());
  EXPECT_EQ(call.text(), "hello");
  EXPECT_EQ(client->info().count("why_not_verbs"), 0u);
}

TEST_F(TransportsTest, ClientsAreSentOnOverVerbsToo) {
  for (const std::string scheme : {"verbs", "verbs+tcp", "rrpc"}) {
    Server front{Options()};
    const auto bound = front.listen_for_others(scheme + "://127.0.0.1:0");
    ASSERT_TRUE(bound.ok()) << bound.status().to_string();
    TestServer server(scheme);
    ASSERT_TRUE(front.redirect(*bound, {port_of(server.address())}).ok());
    auto client = connect_to(*bound, only({"verbs"}));
    EXPECT_EQ(client->info()["transport"], scheme == "rrpc" ? "verbs" : scheme);
    EXPECT_EQ(client->info()["sent_on_to"], server.address());
    TestCall call(*client, "echo", "hello");
    EXPECT_TRUE(call.wait().ok());
  }
}

TEST_F(TransportsTest, AnUnreachableAdapterLeavesTcpWithTheReason) {
  TestServer server("rrpc");
  const Variable mood("RRPC_FAKE_VERBS", "unreachable");
  auto client = connect_to(server.address(), only({"verbs", "tcp"}));
  EXPECT_EQ(client->info()["transport"], "tcp");
  EXPECT_NE(client->info()["why_not_verbs"].find("no route from fake0 to 127.0.0.1:"), std::string::npos);
  EXPECT_NE(client->info()["why_not_shm"].find("transports option"), std::string::npos);

  const auto refused = Client::connect(server.address(), only({"verbs"}), in_ms(10'000));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("no route from fake0"), std::string::npos);
}

TEST_F(TransportsTest, AFailedDialIsTriedOnceMore) {
  TestServer server("rrpc");
  const Variable mood("RRPC_FAKE_VERBS", "flaky");
  EXPECT_EQ(connect_to(server.address(), only({"verbs", "tcp"}))->info()["transport"], "verbs");
}

TEST_F(TransportsTest, AnAdapterWithoutAddressesIsReachedOverASocket) {
  const Variable mood("RRPC_FAKE_VERBS", "addressless");
  TestServer server("rrpc");
  EXPECT_EQ(connect_to(server.address(), only({"verbs"}))->info()["transport"], "verbs+tcp");
}

TEST_F(TransportsTest, AServerMayLeaveTcpOut) {
  TestServer server("rrpc", 1, only({"verbs"}));
  EXPECT_EQ(connect_to(server.address())->info()["transport"], "verbs");
  const auto refused = Client::connect(server.address(), only({"shm", "tcp"}), in_ms(10'000));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("tcp: the server's transports option"), std::string::npos);
}

TEST_F(TransportsTest, AListenerThatFailsLeavesNothingBehind) {
  TestServer first("rrpc");
  Server second{Options()};
  ASSERT_TRUE(second.listen("tcp://127.0.0.1:0").ok());  // starts its engine, which stays
  const size_t idle = open_descriptors();                // those of the tests before may still be closing
  EXPECT_EQ(second.listen(first.address()).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= idle; }));
}

const AdapterFields kAdapters{
    {{"name", "a0"}, {"transport", "RoCE"}, {"addresses", "10.1.0.1,fd00::1"}},
    {{"name", "a1"}, {"transport", "iWARP"}, {"addresses", "10.2.0.1"}},
    {{"name", "a2"}, {"transport", "RoCE"}, {"addresses", "10.3.0.1"}, {"why_not", "its port is down"}},
};

TEST(VerbsPlanTest, VerbsListenNowhereThatTcpIsNotHeard) {
  const VerbsPlan every_ipv4 = plan_verbs(kAdapters, "0.0.0.0:7471", "rrpc");
  EXPECT_EQ(join(every_ipv4.hosts, " "), "10.1.0.1 10.2.0.1");
  EXPECT_FALSE(every_ipv4.by_socket);
  EXPECT_EQ(join(plan_verbs(kAdapters, "[::]:7471", "rrpc").hosts, " "), "10.1.0.1 [fd00::1] 10.2.0.1");
  const VerbsPlan one = plan_verbs(kAdapters, "10.2.0.1:7471", "rrpc");
  EXPECT_EQ(join(one.hosts, " "), "10.2.0.1");
  const VerbsPlan loopback = plan_verbs(kAdapters, "127.0.0.1:7471", "rrpc");
  EXPECT_TRUE(loopback.hosts.empty());
  EXPECT_TRUE(loopback.by_socket);
  EXPECT_FALSE(plan_verbs({kAdapters[1]}, "127.0.0.1:7471", "rrpc").by_socket) << "iWARP has rdma_cm alone";
  EXPECT_FALSE(plan_verbs({kAdapters[2]}, "127.0.0.1:7471", "rrpc").by_socket);
}

TEST(VerbsPlanTest, AnAddressOfVerbsLeavesOneWay) {
  EXPECT_FALSE(plan_verbs(kAdapters, "127.0.0.1:7471", "verbs").by_socket);
  EXPECT_EQ(join(plan_verbs(kAdapters, "0.0.0.0:7471", "verbs").hosts, " "), "10.1.0.1 10.2.0.1");
  const VerbsPlan by_socket = plan_verbs(kAdapters, "0.0.0.0:7471", "verbs+tcp");
  EXPECT_TRUE(by_socket.hosts.empty());
  EXPECT_TRUE(by_socket.by_socket);
}

TEST(VerbsPlanTest, AnOfferFitsTheSmallestSlot) {
  std::string offered;
  int count = 0;
  while (add_offer(offered, "192.168.100.100:65535")) ++count;
  EXPECT_EQ(count, 5);
  EXPECT_LE(offered.size(), 120u);
}

TEST(VerbsPlanTest, TheDialledHostIsTriedFirst) {
  const rpc::HelloFields hello{{"verbs", "10.1.0.1:5,10.2.0.1:5"}, {"verbs+tcp", "9"}};
  const auto found = candidates("verbs", hello, {"rrpc", "10.2.0.1:7471"}).addresses;
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].to_string(), "verbs://10.2.0.1:5");
  EXPECT_EQ(found[1].to_string(), "verbs://10.1.0.1:5");
  EXPECT_EQ(found[2].to_string(), "verbs+tcp://10.2.0.1:9");
}

TEST(OffersTest, WhatAStrangerOffersIsBounded) {
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "10.0.0.1:5,";
  EXPECT_EQ(candidates("verbs", {{"verbs", many}, {"verbs+tcp", "9"}}, {"rrpc", "10.2.0.1:1"}).addresses.size(), 16u);
  for (const std::string& odd : {std::string("10.0.0.1"), std::string("10.0.0.1:0"), std::string("10.0.0.1:5?device=x"),
                                 std::string("10.0.0.1\n:5"), std::string("10.0.0.1\0:5", 11), std::string("\x1b[2J:5"),
                                 std::string(200, 'x') + ":5"}) {
    const auto found = candidates("verbs", {{"verbs", odd}}, {"rrpc", "10.2.0.1:1"});
    EXPECT_TRUE(found.addresses.empty()) << odd;
    EXPECT_TRUE(found.why_none.starts_with("the server offers what is no address: '"));
    EXPECT_EQ(found.why_none.find_first_of("\n\x1b"), std::string::npos);
  }
  EXPECT_TRUE(candidates("verbs", {{"verbs+tcp", "9\n"}}, {"rrpc", "10.2.0.1:1"}).addresses.empty());
  const auto none = candidates("shm", {{"no_shm", "\x1b[2J" + std::string(7000, 'x')}}, {"rrpc", "10.2.0.1:1"});
  EXPECT_LT(none.why_none.size(), 250u);
  EXPECT_EQ(none.why_none.find('\x1b'), std::string::npos);
  const auto socket = candidates("shm", {{"host", host_identity()}, {"shm", "/x\n"}}, {"rrpc", "10.2.0.1:1"});
  EXPECT_TRUE(socket.addresses.empty());
  EXPECT_EQ(socket.why_none, "the server offers what is no socket: '/x?'");
}

TEST(VerbsPlanTest, ADialledSchemeOfVerbsIsTheOneTried) {
  const rpc::HelloFields hello{{"verbs", "10.2.0.1:5"}, {"verbs+tcp", "9"}};
  const auto by_cm = candidates("verbs", hello, {"verbs", "10.2.0.1:7471?device=rxe0", true}).addresses;
  ASSERT_EQ(by_cm.size(), 1u);
  EXPECT_EQ(by_cm[0].to_string(), "verbs://10.2.0.1:5?device=rxe0");
  const auto by_socket = candidates("verbs", hello, {"verbs+tcp", "10.2.0.1:7471", true}).addresses;
  ASSERT_EQ(by_socket.size(), 1u);
  EXPECT_EQ(by_socket[0].to_string(), "verbs+tcp://10.2.0.1:9");
}

}  // namespace
}  // namespace rrpc::driver::testing
