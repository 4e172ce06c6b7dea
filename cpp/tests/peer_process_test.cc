// Whom a connection over shm holds as its peer.
#include "provider/shm/peer_process.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "shm_peers.h"

namespace rrpc::provider::shm {
namespace {

// Its child still has its socket, so that the socket alone would say that it lives.
TEST(PeerProcess, IsHeldByItselfAndNotByItsSocket) {
  const std::string path = test_path("held");
  const UniqueFd listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listening.get(), 1), 0);
  ChildProcess peer([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    char byte = 0;
    if (fork() == 0) {
      EXPECT_EQ(write(fd, &byte, 1), 1);
    }
    EXPECT_EQ(read(fd, &byte, 1), 0);  // until the test is over
  });
  const UniqueFd accepted(accept(listening.get(), nullptr, nullptr));
  char byte = 1;
  ASSERT_EQ(read(accepted.get(), &byte, 1), 1);  // both are there
  auto process = PeerProcess::of(accepted.get()).value();
  EXPECT_EQ(process.pid(), peer.pid());
  EXPECT_FALSE(process.other_user());
  ASSERT_TRUE(process.hold(accepted.get()));
  EXPECT_FALSE(process.ended());
  peer.kill_now();
  EXPECT_TRUE(process.ended());
  pollfd socket_now{accepted.get(), 0, 0};
  EXPECT_EQ(poll(&socket_now, 1, 0), 0) << "the socket is open yet";
  unlink(path.c_str());
}

}  // namespace
}  // namespace rrpc::provider::shm
