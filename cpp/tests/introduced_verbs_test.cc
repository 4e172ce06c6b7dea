// verbs behind TLS: who is let in there, by rrpcs:// and by verbs:// with the options of TLS. A fake verbs provider has
// an adapter.
#ifdef RRPC_TEST_CERTIFICATES  // this build has TLS

#include "driver/devices.h"
#include "driver/offers.h"
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

Options with_tls(const std::string& whose, Protection protection) {
  Options options;
  options.files = test_certificates(whose);
  options.rdma_security = protection;
  return options;
}
Options server_options(Protection protection) { return with_tls("server", protection); }
Options client_options(Protection protection) { return with_tls("client", protection); }

class IntroducedVerbsTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("RRPC_VERBS_PLUGIN", RRPC_FAKE_VERBS_PLUGIN, 1); }
  void TearDown() override {
    unsetenv("RRPC_VERBS_PLUGIN");
    unsetenv("RRPC_FAKE_VERBS");
  }
};

void expect_calls_work(Client& client) {
  TestCall call(client, "echo", "hello", kNever, {});
  ASSERT_TRUE(call.wait().ok());
  EXPECT_EQ(call.text(), "hello");
}

Status refusal(const std::string& address, const Options& options) {
  const auto client = Client::connect(address, options, patiently_ms(10'000));
  EXPECT_FALSE(client.ok());
  return client.status();
}

std::string with_scheme(const std::string& scheme, const std::string& address) {
  return scheme + address.substr(address.find("://"));
}

// First, since a provider that was loaded stays.
TEST_F(IntroducedVerbsTest, WithoutAnAdapterNobodyIsDialled) {
  setenv("RRPC_FAKE_VERBS", "refused", 1);
  const Status client = refusal("verbs://127.0.0.1:1", client_options(Protection::kSign));
  EXPECT_EQ(client.message(), "verbs:// can't be had: fake0: port 1 is down");
  Server server(server_options(Protection::kSign));
  EXPECT_EQ(server.listen("verbs://127.0.0.1:0").status().message(), client.message());
}

TEST_F(IntroducedVerbsTest, AnAdapterWithoutAddressesIsReachedOverASocket) {
  setenv("RRPC_FAKE_VERBS", "addressless", 1);
  TestServer server(std::in_place, "rrpcs://127.0.0.1:0", 1, server_options(Protection::kSign));
  Options options = client_options(Protection::kIdentity);
  options.transports = {"verbs"};
  const auto client = connect_to(server.address(), options);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->info()["transport"], "verbs+tcp");
  EXPECT_EQ(client->info()["security"], "sign");
  expect_calls_work(*client);
}

TEST_F(IntroducedVerbsTest, AnAddressOfVerbsIsReachedThroughTls) {
  for (const std::string scheme : {"verbs", "verbs+tcp"}) {
    for (const auto mode : {Protection::kIdentity, Protection::kSign, Protection::kEncrypt}) {
      TestServer server(std::in_place, scheme + "://127.0.0.1:0", 1, server_options(Protection::kIdentity));
      EXPECT_TRUE(server.address().starts_with(scheme + "://127.0.0.1:"));
      Options options = client_options(mode);
      options.transports = {"shm", "tcp"};  // between which rrpc:// would choose
      const auto client = connect_to(server.address(), options);
      ASSERT_NE(client, nullptr);
      auto info = client->info();
      EXPECT_EQ(info["address"], server.address());
      EXPECT_EQ(info["transport"], scheme);
      EXPECT_EQ(info["security"], protection_name(mode));
      EXPECT_FALSE(info.contains("why_not_tcp"));
      expect_calls_work(*client);
    }
  }
}

TEST_F(IntroducedVerbsTest, TheStrongerWishCounts) {
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, server_options(Protection::kEncrypt));
  const auto client = connect_to(server.address(), client_options(Protection::kIdentity));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->info()["security"], "encrypt");
}

TEST_F(IntroducedVerbsTest, NothingButVerbsIsOfferedThere) {
  Options options = server_options(Protection::kSign);
  options.transports = {"tcp", "shm"};
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, options);
  const std::string chosen_freely = with_scheme("rrpcs", server.address());
  const auto client = connect_to(chosen_freely, client_options(Protection::kSign));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->info()["transport"], "verbs");
  EXPECT_EQ(client->info()["why_not_shm"], "the server offers none: its address insists on verbs");
  Options others = client_options(Protection::kSign);
  others.transports = {"shm", "tcp"};
  EXPECT_EQ(refusal(chosen_freely, others).code(), StatusCode::kUnavailable);
}

TEST_F(IntroducedVerbsTest, TheAddressSaysHowQueuePairsAreIntroduced) {
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, server_options(Protection::kSign));
  const Status why = refusal(with_scheme("verbs+tcp", server.address()), client_options(Protection::kSign));
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("the server offers it by another way than verbs+tcp://"), std::string::npos);
}

TEST_F(IntroducedVerbsTest, NobodyElseIsLetIn) {
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, server_options(Protection::kIdentity));
  EXPECT_NE(refusal(server.address(), Options()).message(), "") << "TLS is expected there";
  Options over_tls = client_options(Protection::kIdentity);
  const auto client = connect_to(with_scheme("tcps", server.address()), over_tls);
  ASSERT_NE(client, nullptr);
  const std::string beside = "verbs://" + client->peer_hello()["verbs"];
  const Status why = refusal(beside, Options());
  EXPECT_EQ(why.code(), StatusCode::kUnauthenticated);
  EXPECT_NE(why.message().find("for clients that TLS has let in"), std::string::npos) << why.message();

  over_tls.files.peer_name = "elsewhere.example.org";
  EXPECT_EQ(refusal(server.address(), over_tls).code(), StatusCode::kUnauthenticated);
}

TEST_F(IntroducedVerbsTest, AClientThatAskedForTlsDoesNotDoWithout) {
  TestServer clear(std::in_place, "verbs://127.0.0.1:0");
  EXPECT_NE(refusal(clear.address(), client_options(Protection::kIdentity)).message(), "");
  TestServer without_rdma(std::in_place, "rrpcs://127.0.0.1:0", 1, server_options(Protection::kNone));
  const Status why = refusal(with_scheme("verbs", without_rdma.address()), client_options(Protection::kEncrypt));
  EXPECT_EQ(why.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(why.message().find("rdma_security is 'none' at the server"), std::string::npos) << why.message();
}

TEST_F(IntroducedVerbsTest, BothEndsMustSayWhatProtectsRdma) {
  const Status client = refusal("verbs://127.0.0.1:1", client_options(Protection::kNone));
  EXPECT_EQ(client.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(client.message().find("it is 'none', and must be identity, sign or encrypt"), std::string::npos);
  Server server(server_options(Protection::kNone));
  EXPECT_EQ(server.listen("verbs://127.0.0.1:0").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(IntroducedVerbsTest, ProtectionWithoutTlsIsRefused) {
  Options options;
  options.rdma_security = Protection::kEncrypt;
  for (const std::string scheme : {"verbs", "verbs+tcp", "rrpc"}) {
    const Status client = refusal(scheme + "://127.0.0.1:1", options);
    EXPECT_EQ(client.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(client.message().find("has no TLS, from which the keys come"), std::string::npos) << client.message();
    Server server(options);
    EXPECT_EQ(server.listen(scheme + "://127.0.0.1:0").status().code(), StatusCode::kInvalidArgument);
  }
  Server server(options);
  EXPECT_TRUE(server.listen("tcp://127.0.0.1:0").ok()) << "which never uses RDMA";
}

// A client of whom no other way to the server would tell more.
TEST_F(IntroducedVerbsTest, WhoMayNotConnectIsToldByTls) {
  setenv("RRPC_FAKE_VERBS", "unreachable", 1);  // nobody comes as far as RDMA
  const auto server_for = [](const std::string& name) {
    Options options = server_options(Protection::kSign);
    options.clients = Principals{{Principal::Kind::kUri, 0, name}};
    options.transports = {"verbs", "tcp"};
    return options;
  };
  for (const std::string scheme : {"verbs", "verbs+tcp", "rrpcs"}) {
    TestServer server(std::in_place, scheme + "://127.0.0.1:0", 1, server_for("spiffe://example.org/stranger"));
    const Status why = refusal(server.address(), client_options(Protection::kSign));
    EXPECT_EQ(why.code(), StatusCode::kPermissionDenied) << why.to_string();
    EXPECT_NE(why.message().find("allow_clients: the server takes no connection of"), std::string::npos)
        << why.message();
  }
  unsetenv("RRPC_FAKE_VERBS");
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, server_for("spiffe://example.org/client"));
  const auto client = connect_to(server.address(), client_options(Protection::kSign));
  ASSERT_NE(client, nullptr);
  expect_calls_work(*client);
}

TEST_F(IntroducedVerbsTest, AnAdapterThatCanNotBeHadIsRefusedAsWithoutTls) {
  struct Ends {
    Options server;
    Options client;
  };
  for (const Ends& ends : {Ends{}, Ends{server_options(Protection::kSign), client_options(Protection::kSign)}}) {
    for (const std::string scheme : {"verbs", "verbs+tcp"}) {
      const auto refused = [](const Status& why) {
        EXPECT_EQ(why.code(), StatusCode::kInvalidArgument) << why.to_string();
        EXPECT_NE(why.message().find("no adapter for '?device=other'"), std::string::npos) << why.message();
      };
      Server nowhere(ends.server);
      refused(nowhere.listen(scheme + "://127.0.0.1:0?device=other").status());
      TestServer server(std::in_place, scheme + "://127.0.0.1:0?device=fake0", 1, ends.server);
      refused(refusal(server.address() + "?device=other", ends.client));
      const auto client = connect_to(server.address() + "?device=fake0", ends.client);
      ASSERT_NE(client, nullptr);
      expect_calls_work(*client);
    }
  }
  Server server(server_options(Protection::kSign));
  const Status why = server.listen("verbs://127.0.0.2:0").status();
  EXPECT_EQ(why.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(why.message().find("127.0.0.2 is no adapter's address"), std::string::npos) << why.message();
}

TEST_F(IntroducedVerbsTest, ClientsAreSentOnThroughTlsToo) {
  Server front(server_options(Protection::kSign));
  const auto bound = front.listen_for_others("verbs://127.0.0.1:0");
  ASSERT_TRUE(bound.ok()) << bound.status().to_string();
  TestServer server(std::in_place, "verbs://127.0.0.1:0", 1, server_options(Protection::kSign));
  ASSERT_TRUE(front.redirect(*bound, {port_of(server.address())}).ok());
  const auto client = connect_to(*bound, client_options(Protection::kSign));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->info()["transport"], "verbs");
  EXPECT_EQ(client->info()["security"], "sign");
  EXPECT_EQ(client->info()["sent_on_to"], server.address());
  expect_calls_work(*client);
}

}  // namespace
}  // namespace rrpc::driver::testing
#endif
