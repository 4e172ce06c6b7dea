// Messages that lie in the entries of the ring, between two ends in one process.
#include <gtest/gtest.h>

#include <algorithm>

#include "provider/shm/control_segment.h"
#include "shm_peers.h"

namespace rrpc::provider::shm {
namespace {

// So that a quiet ring costs few pages: those of the entries.
TEST(ShmProvider, ShortMessagesTouchNoReceive) {
  const std::string path = test_path("short");
  Node server;
  server.listen(path);
  const auto accept = [&] {
    auto accepted = server.listener->accept(*server.cq, {});
    if (accepted.ok() && *accepted != nullptr) server.begin(std::move(accepted).value());
  };
  Node client;
  client.meanwhile = [&] { server.qp == nullptr ? accept() : (void)server.step(); };
  client.connect(path);
  const std::string message(kEntryMessageBytes, 's');
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(client.send(message).ok());
    ASSERT_TRUE(client.wait([&] { return server.messages.size() == static_cast<size_t>(i + 1); }));
    EXPECT_EQ(server.messages.back(), message);
  }
  EXPECT_TRUE(std::ranges::all_of(server.ring, [](std::byte byte) { return byte == std::byte{0}; }));
  ASSERT_TRUE(client.send(message + "s").ok());
  ASSERT_TRUE(client.wait([&] { return server.messages.size() == 201; }));
  EXPECT_FALSE(std::ranges::all_of(server.ring, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace rrpc::provider::shm
