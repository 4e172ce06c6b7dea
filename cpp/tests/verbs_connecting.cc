// Addresses that can't be had, and strangers at the port where queue pairs are introduced.
#include <sys/socket.h>

#include <cerrno>
#include <fstream>

#include "provider/socket.h"
#include "verbs_under_test.h"

namespace rrpc::provider::conformance {
namespace {

std::string rxe() { return from_environment("RRPC_VERBS_RXE", "10.9.0.1"); }
std::string siw() { return from_environment("RRPC_VERBS_SIW", "10.9.1.1"); }

struct BadAddress {
  bool by_socket;
  bool listening;
  std::string address;
  StatusCode code;
  std::string says;
};

void expect_bad(const BadAddress& bad) {
  SCOPED_TRACE(bad.address);
  Device& device = bad.by_socket ? *verbs_devices().socket : *verbs_devices().cm;
  Status status;
  if (bad.listening) {
    status = device.listen(bad.address, {}).status();
  } else {
    const auto cq = device.create_completion_queue(16);
    status = device.open(*cq, bad.address, {}, deadline_after(now_ns(), 10 * kSecond)).status();
  }
  EXPECT_EQ(status.code(), bad.code) << status.to_string();
  EXPECT_NE(status.message().find(bad.says), std::string::npos) << status.to_string();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.to_string();
}

TEST(VerbsAddress, WhatIsWrongIsNamed) {
  for (const bool by_socket : {false, true}) {
    for (const bool listening : {false, true}) {
      const auto bad = [&](const std::string& address, StatusCode code, const std::string& says) {
        expect_bad({by_socket, listening, address, code, says});
      };
      bad(rxe() + ":9?colour=red", StatusCode::kInvalidArgument, "unknown option 'colour'");
      bad(rxe() + ":9?port=0", StatusCode::kInvalidArgument, "1 to 255");
      bad(rxe() + ":9?device=", StatusCode::kInvalidArgument, "names no adapter");
      bad(rxe() + ":9?traffic_class=256", StatusCode::kInvalidArgument, "0 to 255");
      bad(rxe() + ":9?service_level=16", StatusCode::kInvalidArgument, "0 to 15");
      bad(rxe() + ":9?pkey=0x", StatusCode::kInvalidArgument, "1 to 65535");
      bad(rxe() + ":9?grh=yes", StatusCode::kInvalidArgument, "0 to 1");
      bad(rxe(), StatusCode::kInvalidArgument, "no port");
    }
    expect_bad({by_socket, true, rxe() + ":0?device=nosuch", StatusCode::kNotFound, "nosuch"});
  }
  expect_bad({true, true, rxe() + ":0?gid=77", StatusCode::kInvalidArgument, "GID index 77"});
  expect_bad({true, true, rxe() + ":0?port=9", StatusCode::kInvalidArgument, "port 9"});
  expect_bad(
      {true, true, rxe() + ":0?pkey=0x8123", StatusCode::kInvalidArgument, "is in no partition 0x8123; it has 0x"});
  expect_bad({false, true, rxe() + ":0?traffic_class=104", StatusCode::kInvalidArgument, "the end that connects"});
  for (const std::string option : {"service_level=1", "pkey=0xffff", "grh=1"})
    expect_bad({false, true, rxe() + ":0?" + option, StatusCode::kInvalidArgument, "verbs+tcp://"});
  expect_bad({true, true, siw() + ":0?device=siw0", StatusCode::kFailedPrecondition, "verbs://"});
  expect_bad({false, true, rxe() + ":0?device=siw0", StatusCode::kInvalidArgument, "siw0"});
  expect_bad({false, true, "127.0.0.1:0", StatusCode::kInvalidArgument, "no RDMA adapter"});
  expect_bad({false, false, "192.0.2.1:9", StatusCode::kUnavailable, "192.0.2.1:9"});
}

class VerbsOfferTest : public ConformanceTest {};

TEST_P(VerbsOfferTest, IsKnownBeforeItIsAcceptedAndItsRefusalTellsWhy) {
  client_.qp = open_client();
  ASSERT_TRUE(client_.qp->start(as_bytes("hello from the client")).ok());
  server_.qp = accept_server();
  EXPECT_TRUE(as_text(server_.qp->peer_private_data()).starts_with("hello from the client"));
  server_.qp->disconnect("no strangers here");
  ASSERT_TRUE(wait_for([&] { return client_.dead(); }));
  EXPECT_NE(client_.qp->error().message().find("no strangers here"), std::string::npos)
      << client_.qp->error().to_string();
}

class VerbsFabricTest : public ConformanceTest {
 protected:
  // Both ends with options of their own.
  void connect_with(const std::string& server_options, const std::string& client_options) {
    auto listener = server_.device->listen(provider_->listen_address() + server_options, {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    listener_ = std::move(listener).value();
    auto qp = client_.device->open(*client_.cq, listener_->address() + client_options, {},
                                   deadline_after(now_ns(), provider_->patience()));
    ASSERT_TRUE(qp.ok()) << qp.status().to_string();
    client_.qp = std::move(qp).value();
    ASSERT_TRUE(client_.qp->start(as_bytes("hello")).ok());
    server_.qp = accept_server();
    ASSERT_NE(server_.qp, nullptr);
    ASSERT_TRUE(server_.qp->start(as_bytes("hello")).ok());
    ASSERT_TRUE(wait_for([&] { return connected(client_) && connected(server_); }))
        << client_.qp->error().to_string() << " / " << server_.qp->error().to_string();
  }
  using Marks = std::map<std::string, std::string>;
};

TEST_P(VerbsFabricTest, MarksAreThoseThatTheAddressesAskFor) {
  const std::string which = GetParam().name;
  if (which == "rxe_socket") {
    connect_with("?traffic_class=40&service_level=5&pkey=0xffff&grh=1", "?traffic_class=104&service_level=3");
    // Soft-RoCE keeps no service level: bring_up_test.cc looks at that.
    EXPECT_EQ(client_.qp->fabric_marks(),
              (Marks{{"traffic_class", "104"}, {"service_level", "0"}, {"pkey", "0xffff"}}));
    EXPECT_EQ(server_.qp->fabric_marks(), (Marks{{"traffic_class", "40"}, {"service_level", "0"}, {"pkey", "0xffff"}}));
    return;
  }
  connect_with("", "?traffic_class=104");  // the one that connects decides for both
  if (which != "rxe") return;              // iWARP doesn't tell
  EXPECT_EQ(client_.qp->fabric_marks()["traffic_class"], "104");
  EXPECT_EQ(server_.qp->fabric_marks()["traffic_class"], "104");
}

class VerbsIntroductionTest : public ConformanceTest {
 protected:
  UniqueFd dial() {
    auto candidates = resolve(listener_->address(), ResolveFor::kConnect, kNever);
    const TimeNs deadline = deadline_after(now_ns(), provider_->patience());
    auto fd = provider::dial(listener_->address(), std::move(candidates).value(), deadline);
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    return std::move(fd).value();
  }
  static void say(const UniqueFd& fd, std::string_view text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // All that comes until the listener hangs up.
  std::string answer(const UniqueFd& fd) {
    std::string text;
    EXPECT_TRUE(wait_for([&] {
      auto accepted = listener_->accept(*server_.cq, {});
      EXPECT_TRUE(accepted.ok() && *accepted == nullptr);
      char bytes[1024];
      const ssize_t count = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (count > 0) text.append(bytes, static_cast<size_t>(count));
      return count == 0 || (count < 0 && errno != EAGAIN);
    }));
    return text;
  }
};

TEST_P(VerbsIntroductionTest, StrangersAreToldAndOthersServed) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> strangers[] = {
      {"GET / HTTP/1.1\r\n\r\n", "doesn't speak"},
      {"rrvb\x63\x01\x00\x00"s, "version 99"},
      {"rrvb\x01\x01\x00\x00"s, "version 1 of verbs+tcp, this end 2"},
      {"rrvb\x02\x09\x00\x00"s, "malformed"},
      {"rrvb\x02\x01\xff\xff"s, "malformed"},
      {"rrvb\x02\x01\x03\x00\x01\x02\x03"s, "malformed"},
      {"rrvb\x02\x02\x00\x00"s, "malformed"},
  };
  std::vector<UniqueFd> silent;
  for (const auto& [bytes, reason] : strangers) {
    silent.push_back(dial());
    const UniqueFd stranger = dial();
    say(stranger, bytes);
    EXPECT_NE(answer(stranger).find(reason), std::string::npos) << reason;
  }
  say(silent.front(), "rr");
  connect();
}

TEST_P(VerbsIntroductionTest, ManyWhoSayNothingKeepNobodyOut) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(dial());
    auto accepted = listener_->accept(*server_.cq, {});
    ASSERT_TRUE(accepted.ok() && *accepted == nullptr);
  }
  connect();
  EXPECT_NE(answer(silent.front()).find("too many"), std::string::npos);
}

class SoftIwarpPortsTest : public ConformanceTest {
 protected:
  void SetUp() override {
    ConformanceTest::SetUp();
    std::getline(std::ifstream(kRange), usual_);
    choose_from("20000 20511");
  }
  void TearDown() override {
    choose_from(usual_);
    ConformanceTest::TearDown();
  }
  static void choose_from(const std::string& range) { std::ofstream(kRange) << range; }

  static constexpr const char* kRange = "/proc/sys/net/ipv4/ip_local_port_range";
  std::string usual_;
};

TEST_P(SoftIwarpPortsTest, ThoseThatTcpHasGivenAwayAreLeftOut) {
  std::vector<UniqueFd> others;  // half of all
  for (int port = 20'000; port < 20'512; port += 2) {
    auto where = resolve(siw() + ":" + std::to_string(port), ResolveFor::kConnect, kNever);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const bool bound = bind(fd.get(), where->front().get(), where->front().length) == 0;
    ASSERT_TRUE(bound || errno == EADDRINUSE) << port;
    others.push_back(std::move(fd));
  }
  std::vector<std::unique_ptr<Listener>> listeners;
  for (int i = 0; i < 8; ++i) {
    auto listener = server_.device->listen(provider_->listen_address(), {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    listeners.push_back(std::move(listener).value());
    connect();
    client_.qp.reset();
    server_.qp.reset();
  }
}

class SoftIwarpSilenceTest : public ConformanceTest {};

// Soft-iWARP's requests are TCP's: a plain socket takes them, and says nothing. The kernel waits for ten seconds.
TEST_P(SoftIwarpSilenceTest, GivingUpARequestHoldsNobodyUp) {
  const auto where = resolve(provider_->listen_address(), ResolveFor::kListen, kNever);
  auto silent = listen_on(where->front(), provider_->listen_address(), 8);
  ASSERT_TRUE(silent.ok()) << silent.status().to_string();
  auto qp = client_.device->open(*client_.cq, local_address(silent->get()).to_string(), {},
                                 deadline_after(now_ns(), provider_->patience()));
  ASSERT_TRUE(qp.ok()) << qp.status().to_string();
  client_.qp = std::move(qp).value();
  ASSERT_TRUE(client_.qp->start({}).ok());
  client_.qp->disconnect("given up");
  Completion completion;
  for (int i = 0; i < 3; ++i) (void)client_.cq->poll({&completion, 1});
  EXPECT_TRUE(client_.cq->lingering()) << "a poll has waited for the kernel";
  silent->reset();  // an answer, of sorts
  EXPECT_TRUE(wait_for([&] { return !client_.cq->lingering(); }));
}

std::vector<ProviderFactory> only(const std::string& name) {
  std::vector<ProviderFactory> cases = verbs_cases();
  std::erase_if(cases, [&](const ProviderFactory& factory) { return factory.name != name; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsOfferTest, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsFabricTest, ::testing::ValuesIn(verbs_cases()), factory_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerbsIntroductionTest);
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsIntroductionTest, ::testing::ValuesIn(only("rxe_socket")), factory_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SoftIwarpPortsTest);
INSTANTIATE_TEST_SUITE_P(Verbs, SoftIwarpPortsTest, ::testing::ValuesIn(only("siw")), factory_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SoftIwarpSilenceTest);
INSTANTIATE_TEST_SUITE_P(Verbs, SoftIwarpSilenceTest, ::testing::ValuesIn(only("siw")), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
