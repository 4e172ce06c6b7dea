// Clients that connect and say nothing: what they cost is bounded, in descriptors and in time.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "provider/tcp/silent_sockets.h"

namespace rrpc::provider::tcp {
namespace {

class Silent : public ::testing::Test {
 protected:
  void SetUp() override {
    listening_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ASSERT_TRUE(listening_);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    ASSERT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address_), length), 0);
    ASSERT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address_), &length), 0);
    ASSERT_EQ(::listen(listening_.get(), 1000), 0);
  }
  SilentSockets sockets(size_t most, TimeNs silence_max = kSilenceMax) {
    return SilentSockets(listening_.get(), most, silence_max);
  }
  void connect(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      UniqueFd& client = clients_.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
      ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    }
  }
  // Until next() gives a socket, or so many are left.
  static UniqueFd run(SilentSockets& silent, size_t left) {
    const TimeNs end = now_ns() + 10 * kSecond;
    do {
      pollfd ready{silent.wait_fd(), POLLIN, 0};
      ::poll(&ready, 1, 100);
      if (UniqueFd spoken = silent.next().value()) return spoken;
    } while (silent.size() != left && now_ns() < end);
    EXPECT_EQ(silent.size(), left);
    return {};
  }

  UniqueFd listening_;
  sockaddr_in address_{};
  std::vector<UniqueFd> clients_;
};

TEST_F(Silent, AFewAreAcceptedAtATime) {
  SilentSockets silent = sockets(1000);
  ASSERT_TRUE(silent.open().ok());
  connect(100);
  for (size_t before = 0; silent.size() < 100; before = silent.size()) {
    EXPECT_FALSE(silent.next().value());
    ASSERT_GT(silent.size(), before);
    EXPECT_LE(silent.size() - before, 4u);
  }
}

TEST_F(Silent, BeyondTheBoundTheOldestGoes) {
  SilentSockets silent = sockets(10);
  ASSERT_TRUE(silent.open().ok());
  connect(30);
  ASSERT_EQ(::send(clients_.back().get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(run(silent, 0));
  EXPECT_EQ(silent.size(), 9u);
}

TEST_F(Silent, ThoseWhoseTimeIsUpAreClosedAFewAtATime) {
  SilentSockets silent = sockets(1000, 200 * kMillisecond);
  ASSERT_TRUE(silent.open().ok());
  connect(100);
  size_t most = 0;
  for (const TimeNs end = now_ns() + 10 * kSecond; most == 0 || silent.size() > 0;) {
    ASSERT_LT(now_ns(), end);
    pollfd ready{silent.wait_fd(), POLLIN, 0};
    ::poll(&ready, 1, 100);
    const size_t before = silent.size();
    EXPECT_FALSE(silent.next().value());
    EXPECT_GE(silent.size() + 8, before);
    most = std::max(most, silent.size());
  }
  EXPECT_GT(most, 8u) << "they were closed as they came: the test shows nothing";
}

TEST_F(Silent, OneThatLeavesWithoutAWordIsNoConnection) {
  SilentSockets silent = sockets(1000);
  ASSERT_TRUE(silent.open().ok());
  connect(3);
  EXPECT_FALSE(run(silent, 3));
  clients_.clear();
  EXPECT_FALSE(run(silent, 0));
}

TEST_F(Silent, OneThatHasSpokenAndLeftIsOne) {
  SilentSockets silent = sockets(1000);
  ASSERT_TRUE(silent.open().ok());
  connect(1);
  ASSERT_EQ(::send(clients_.back().get(), "x", 1, MSG_NOSIGNAL), 1);
  clients_.clear();
  EXPECT_TRUE(run(silent, 0));
}

}  // namespace
}  // namespace rrpc::provider::tcp
