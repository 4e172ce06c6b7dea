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

class VerbsTlsTest : public ::testing::Test {
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

TEST_F(VerbsTlsTest, AnAdapterWithoutAddressesIsReachedOverASocket) {
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

}  // namespace
}  // namespace rrpc::driver::testing
#endif
