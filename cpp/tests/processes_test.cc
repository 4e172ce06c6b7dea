// A server that sends its clients on to others: several processes behind one address.

#include <map>

#include "driver/offers.h"
#include "driver_pair.h"

namespace rrpc::driver::testing {
namespace {

Status why_no_client(const std::string& address) { return Client::connect(address, Options(), in_ms(10'000)).status(); }

// In front of servers that handle calls. Of shm:// they listen where a suffix of its own path leads.
class Front {
 public:
  explicit Front(const std::string& scheme) : scheme_(scheme), server_(Options()) {
    const auto bound = server_.listen_for_others(new_address(scheme));
    EXPECT_TRUE(bound.ok()) << bound.status().to_string();
    address_ = *bound;
  }
  std::string next_address() {
    return scheme_ == "shm" ? address_ + "." + std::to_string(++count_) : scheme_ + "://127.0.0.1:0";
  }
  std::string target(const std::string& address) const {
    return address.substr(address.rfind(scheme_ == "shm" ? '.' : ':') + 1);
  }
  void send_to(std::vector<std::string> targets) { EXPECT_TRUE(server_.redirect(address_, std::move(targets)).ok()); }
  const std::string& address() const { return address_; }
  Server& server() { return server_; }

 private:
  const std::string scheme_;
  Server server_;
  std::string address_;
  int count_ = 0;
};

class ProcessesTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<TestServer> serve(Front& front) {
    return std::make_unique<TestServer>(std::in_place, front.next_address());
  }
};

TEST_P(ProcessesTest, ClientsAreSentOnInTurn) {
  Front front(GetParam());
  auto a = serve(front);
  auto b = serve(front);
  front.send_to({front.target(a->address()), front.target(b->address())});
  std::map<std::string, int> used;
  for (int i = 0; i < 6; ++i) {
    auto client = connect_to(front.address());
    EXPECT_EQ(client->info()["address"], front.address());
    ++used[client->info()["sent_on_to"]];
    TestCall call(*client, "echo", "x");
    EXPECT_TRUE(call.wait().ok());
  }
  EXPECT_EQ(used, (std::map<std::string, int>{{a->address(), 3}, {b->address(), 3}}));
  EXPECT_EQ(a->served() + b->served(), 6);
  EXPECT_EQ(a->served(), 3);
  EXPECT_TRUE(eventually([&] { return front.server().connection_count() == 0; })) << "nobody stays with the front";
}

TEST_P(ProcessesTest, OneThatHasDiedIsPassedOver) {
  Front front(GetParam());
  auto a = serve(front);
  const std::string gone = front.target(serve(front)->address());
  front.send_to({front.target(a->address()), gone});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(connect_to(front.address())->info()["sent_on_to"], a->address());
  front.send_to({gone});
  const Status status = why_no_client(front.address());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(front.address() + " sent this client on: "), std::string::npos) << status.message();
}

TEST_P(ProcessesTest, WithNobodyToSendToClientsAreRefused) {
  Front front(GetParam());
  const Status status = why_no_client(front.address());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("none of the server's processes is ready"), std::string::npos) << status.message();
  auto a = serve(front);
  front.send_to({front.target(a->address())});
  EXPECT_EQ(connect_to(front.address())->info()["sent_on_to"], a->address());
}

TEST_P(ProcessesTest, ASecondFrontIsNotFollowed) {
  Front front(GetParam());
  Server second{Options()};
  const auto bound = second.listen_for_others(front.next_address());
  ASSERT_TRUE(bound.ok());
  ASSERT_TRUE(second.redirect(*bound, {"1"}).ok());
  front.send_to({front.target(*bound)});
  const Status status = why_no_client(front.address());
  EXPECT_TRUE(status.is_protocol_error()) << status.to_string();
  EXPECT_NE(status.message().find("sends it on once more"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(All, ProcessesTest, ::testing::Values("shm", "tcp", "rrpc"),
                         [](const auto& scheme) { return std::string(scheme.param); });

TEST(RedirectTest, OnlyAnAddressThatWasAskedForIsRedirected) {
  Front front("tcp");
  EXPECT_EQ(front.server().redirect("tcp://127.0.0.1:1", {"5"}).code(), StatusCode::kNotFound);
}

TEST(SentOnTest, AnotherPortOfTheSameHost) {
  const auto there = [](const Address& dialled, const std::string& go_to) {
    const auto address = sent_on(dialled, go_to);
    return address.ok() ? address->to_string() : "";
  };
  EXPECT_EQ(there({"tcp", "example.org:7471"}, "40001"), "tcp://example.org:40001");
  EXPECT_EQ(there({"rrpc", "[fd00::1]:7471"}, "1"), "rrpc://[fd00::1]:1");
  EXPECT_EQ(there({"verbs", "10.0.0.1:7471?device=rxe0&gid=1"}, "65535"), "verbs://10.0.0.1:65535?device=rxe0&gid=1");
  EXPECT_EQ(there({"rrpc", "10.0.0.1:7471?device=rxe0"}, "2"), "rrpc://10.0.0.1:2?device=rxe0");
  EXPECT_EQ(there({"shm", "/run/x.sock"}, "1"), "shm:///run/x.sock.1");
  EXPECT_TRUE(there({"shm", "name"}, "12").ends_with("/name.sock.12"));
}

TEST(SentOnTest, NothingElse) {
  EXPECT_EQ(sent_on({"tcp", "127.0.0.1:7471"}, "").status().code(), StatusCode::kUnavailable);
  const std::string huge(60'000, '7');
  for (const std::string& go_to :
       {std::string("0"), std::string("65536"), std::string("-1"), std::string("80 "), std::string("+80"),
        std::string("10.0.0.9:80"), std::string("tcp://h:80"), huge, std::string("8\0", 2)}) {
    const Status status = sent_on({"tcp", "127.0.0.1:7471"}, go_to).status();
    EXPECT_TRUE(status.is_protocol_error()) << go_to.substr(0, 20);
    EXPECT_LT(status.message().size(), 120u);
  }
  for (const std::string& go_to : {std::string("../x"), std::string("a/b"), std::string("."), huge,
                                   std::string("/run/docker.sock"), std::string("a\nb")})
    EXPECT_TRUE(sent_on({"shm", "/run/x.sock"}, go_to).status().is_protocol_error()) << go_to.substr(0, 20);
}

}  // namespace
}  // namespace rrpc::driver::testing
