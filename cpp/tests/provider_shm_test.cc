// What is the shm provider's own, between two real processes.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "shm_peers.h"

namespace rrpc::provider::shm {
namespace {

constexpr size_t kBulkBytes = 5 << 20;

template <typename Container>
void fill(Container& bytes, int seed) {
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + (i >> 9) + static_cast<size_t>(seed));
}

std::string who_is(const QueuePair& qp) {
  const PeerIdentity& peer = qp.peer_identity();
  if (!peer.process || peer.certificate) return "nobody";
  return std::to_string(peer.process->pid) + " " + std::to_string(peer.process->uid) + " " +
         std::to_string(peer.process->gid);
}

// A server that exposes ordinary and pool memory, for as long as its client tells it to.
void serve(const std::string& path) {
  Node node;
  std::vector<std::byte> ordinary(kBulkBytes);
  SharedBytes pooled(kBulkBytes);
  fill(ordinary, 1);
  fill(pooled, 2);
  auto ordinary_region = node.device->register_memory({ordinary.data(), ordinary.size()}).value();
  auto pooled_region = node.device->register_memory(shared_range(pooled)).value();
  node.listen(path);
  node.accept_one();
  uint32_t last_rkey = 0;
  const auto offer = [&](MemoryRegion& region) {
    auto rkey = node.qp->expose(region, region.range().address, kBulkBytes, kRemoteRead | kRemoteWrite);
    last_rkey = rkey.ok() ? *rkey : 0;
    const Ticket ticket{reinterpret_cast<uint64_t>(region.range().address), kBulkBytes, last_rkey};
    (void)node.send(rkey.ok() ? ticket.text() : "refused: " + rkey.status().message());
  };
  for (;;) {
    const std::string command = node.next_message();
    if (command == "ordinary")
      offer(*ordinary_region);
    else if (command == "pooled")
      offer(*pooled_region);
    else if (command == "revoke")
      node.qp->revoke(last_rkey), (void)node.send("revoked");
    else if (command == "first bytes")
      (void)node.send(std::string(as_text(Bytes(pooled).first(4))) + std::string(as_text(Bytes(ordinary).first(4))));
    else if (command == "echo") {
      (void)node.send("begun");
      for (;;) (void)node.send(node.next_message());
    } else if (command == "who")
      (void)node.send(who_is(*node.qp));
    else if (command == "drop")
      pooled_region.reset(), (void)node.send("dropped");
    else if (command == "echo asleep") {
      for (int i = 0; i < 2000; ++i) {
        if (!node.wait_asleep([&] { return node.messages.size() > node.messages_taken; })) return;
        (void)node.send(node.messages[node.messages_taken++]);
      }
    } else
      return;
  }
}

class TwoProcesses : public ::testing::Test {
 protected:
  void begin() {
    server_.emplace([this] { serve(path_); });
    client_ = std::make_unique<Node>();
    client_->connect(path_);
  }
  std::string ask(const std::string& command) {
    EXPECT_TRUE(client_->send(command).ok());
    return client_->next_message();
  }
  void TearDown() override {
    client_.reset();
    server_.reset();
    unsetenv("RRPC_SHM_NO_VM_READV");
    unlink(path_.c_str());
  }

  std::string path_ = test_path("two");
  std::optional<ChildProcess> server_;
  std::unique_ptr<Node> client_;
};

TEST_F(TwoProcesses, EachKnowsTheProcessOfTheOther) {
  begin();
  const std::string user = " " + std::to_string(geteuid()) + " " + std::to_string(getegid());
  EXPECT_EQ(ask("who"), std::to_string(getpid()) + user);
  EXPECT_EQ(who_is(*client_->qp), std::to_string(server_->pid()) + user);
}

TEST_F(TwoProcesses, ReadAndWriteOrdinaryAndPooledMemory) {
  begin();
  if (client_->qp->bulk_method() != "process_vm_readv") GTEST_SKIP() << "the kernel forbids process_vm_readv here";
  std::vector<std::byte> target(kBulkBytes);
  auto region = client_->device->register_memory({target.data(), target.size()}).value();
  const Sge whole{target.data(), kBulkBytes, region.get()};
  std::vector<std::byte> expected(kBulkBytes);
  int seed = 0;
  for (const char* kind : {"ordinary", "pooled"}) {
    const Ticket ticket = Ticket::from(ask(kind));
    ASSERT_NE(ticket.rkey, 0u);
    EXPECT_EQ(client_->transfer(Opcode::kRead, whole, ticket.address, ticket.rkey), WcStatus::kSuccess);
    fill(expected, ++seed);
    EXPECT_TRUE(target == expected) << kind;
    std::memcpy(target.data(), kind, 4);
    EXPECT_EQ(client_->transfer(Opcode::kWrite, {target.data(), 4, region.get()}, ticket.address, ticket.rkey),
              WcStatus::kSuccess);
  }
  EXPECT_EQ(ask("first bytes"), "poolordi");
}

TEST_F(TwoProcesses, WithoutVmAccessOrdinaryMemoryIsRefusedAndThePoolWorks) {
  setenv("RRPC_SHM_NO_VM_READV", "1", 1);
  begin();
  EXPECT_EQ(client_->qp->bulk_method(), "staged");
  EXPECT_TRUE(ask("ordinary").starts_with("refused: the peer may not read"));
  std::vector<std::byte> target(kBulkBytes);
  auto region = client_->device->register_memory({target.data(), target.size()}).value();
  EXPECT_EQ(client_->qp->expose(*region, target.data(), 1, kRemoteRead).status().code(),
            StatusCode::kFailedPrecondition);
  const Ticket ticket = Ticket::from(ask("pooled"));
  EXPECT_EQ(client_->transfer(Opcode::kRead, {target.data(), kBulkBytes, region.get()}, ticket.address, ticket.rkey),
            WcStatus::kSuccess);
  std::vector<std::byte> expected(kBulkBytes);
  fill(expected, 2);
  EXPECT_TRUE(target == expected);
}

TEST_F(TwoProcesses, OneSideWithoutVmAccessIsEnough) {
  server_.emplace([this] {
    setenv("RRPC_SHM_NO_VM_READV", "1", 1);
    serve(path_);
  });
  client_ = std::make_unique<Node>();
  client_->connect(path_);
  EXPECT_EQ(client_->qp->bulk_method(), "staged");
  EXPECT_TRUE(ask("ordinary").starts_with("refused"));
}

TEST_F(TwoProcesses, ALateReadIsRefused) {
  for (const char* kind : {"ordinary", "pooled"}) {
    begin();
    const Ticket ticket = Ticket::from(ask(kind));
    if (ticket.rkey == 0) GTEST_SKIP();
    EXPECT_EQ(ask("revoke"), "revoked");
    std::vector<std::byte> target(4096);
    auto region = client_->device->register_memory({target.data(), target.size()}).value();
    EXPECT_EQ(client_->transfer(Opcode::kRead, {target.data(), 4096, region.get()}, ticket.address, ticket.rkey),
              WcStatus::kRemoteAccess);
    EXPECT_TRUE(client_->dead());
    EXPECT_TRUE(std::ranges::all_of(target, [](std::byte b) { return b == std::byte{0}; }));
    TearDown();
  }
}

TEST_F(TwoProcesses, AKilledPeerIsNoticedByASpinner) {
  begin();
  server_->kill_now();
  const TimeNs start = now_ns();
  ASSERT_TRUE(client_->wait([&] { return client_->completions.size() == kSlotCount; }));
  EXPECT_LT(now_ns() - start, kSecond);
  EXPECT_EQ(client_->qp->error().code(), StatusCode::kUnavailable) << client_->qp->error().to_string();
  for (const Completion& completion : client_->completions) EXPECT_EQ(completion.status, WcStatus::kFlushed);
}

TEST_F(TwoProcesses, AKilledPeerWakesASleeper) {
  begin();
  client_->cq->arm();
  client_->step();
  server_->kill_now();
  const TimeNs start = now_ns();
  ASSERT_TRUE(client_->wait_asleep([&] { return client_->dead(); }));
  EXPECT_LT(now_ns() - start, kSecond);
}

TEST_F(TwoProcesses, AKilledPeerEndsItsReads) {
  begin();
  const Ticket ticket = Ticket::from(ask("ordinary"));
  if (ticket.rkey == 0) GTEST_SKIP();
  std::vector<std::byte> target(kBulkBytes);
  auto region = client_->device->register_memory({target.data(), target.size()}).value();
  const Sge sge{target.data(), kBulkBytes, region.get()};
  const WorkRequest request{
      .wr_id = 7, .opcode = Opcode::kRead, .sges = {&sge, 1}, .remote_address = ticket.address, .rkey = ticket.rkey};
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(client_->qp->post_send({&request, 1}).ok());
  client_->step();
  server_->kill_now();
  ASSERT_TRUE(client_->wait([&] { return client_->completions.size() == 8 + kSlotCount; }));
  EXPECT_EQ(client_->qp->error().code(), StatusCode::kUnavailable) << client_->qp->error().to_string();
}

// A forked helper of the dead peer still holds copies of its descriptors.
TEST_F(TwoProcesses, AForkedChildOfThePeerDoesNotHideItsDeath) {
  int alive[2];
  ASSERT_EQ(pipe2(alive, O_CLOEXEC), 0);
  server_.emplace([&] {
    close(alive[1]);
    Node node;
    node.listen(path_);
    node.accept_one();
    if (fork() == 0) {
      char byte;
      (void)!read(alive[0], &byte, 1);  // until the test ends
      _exit(0);
    }
    (void)node.send("forked");
    (void)node.wait([] { return false; });
  });
  close(alive[0]);
  client_ = std::make_unique<Node>();
  client_->connect(path_);
  EXPECT_EQ(client_->next_message(), "forked");
  server_->kill_now();
  const TimeNs start = now_ns();
  EXPECT_TRUE(client_->wait_asleep([&] { return client_->dead(); }));
  EXPECT_LT(now_ns() - start, kSecond);
  close(alive[1]);
}

TEST_F(TwoProcesses, AForkedChildLeavesItsParentsConnectionAlone) {
  begin();
  ChildProcess child([&] {
    EXPECT_EQ(client_->send("from the child").code(), StatusCode::kFailedPrecondition);
    client_->qp.reset();
  });
  EXPECT_EQ(child.exit_code(), 0);
  EXPECT_NE(Ticket::from(ask("pooled")).rkey, 0u);
}

TEST_F(TwoProcesses, NoWakeUpIsLost) {
  begin();
  ASSERT_TRUE(client_->send("echo asleep").ok());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(client_->send(std::to_string(i)).ok());
    const TimeNs start = now_ns();
    ASSERT_TRUE(client_->wait_asleep([&] { return client_->messages.size() > client_->messages_taken; })) << i;
    ASSERT_LT(now_ns() - start, 900 * kMillisecond) << "slept until the time-out, round " << i;
    ASSERT_EQ(client_->messages[client_->messages_taken++], std::to_string(i));
  }
}

TEST_F(TwoProcesses, APeersDeregisteredSlabIsUnmapped) {
  begin();
  const size_t before = mapped_test_files();
  EXPECT_NE(Ticket::from(ask("pooled")).rkey, 0u);
  EXPECT_TRUE(client_->wait([&] { return mapped_test_files() == before + 1; }));
  EXPECT_EQ(ask("revoke"), "revoked");
  EXPECT_EQ(ask("drop"), "dropped");
  EXPECT_TRUE(client_->wait([&] {
    (void)client_->send("first bytes");
    (void)client_->next_message();
    return mapped_test_files() == before;
  }));
}

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// The socket and the peer's pidfd. A server has the ready bits' file, too, of a client with many connections.
// Its socket; that of the peer's process is shared by all connections to it.
TEST(ShmProvider, AnEndHoldsOneDescriptor) {
  Node server;
  server.listen(test_path("fds"));
  std::vector<std::unique_ptr<QueuePair>> pairs;
  Node client;
  const auto connect_one = [&] {
    auto opened = client.device->open(*client.cq, server.listener->address(), {}, kNever).value();
    auto accepted = server.listener->accept(*server.cq, {}).value();
    ASSERT_TRUE(accepted);
    for (QueuePair* qp : {opened.get(), accepted.get()}) {
      Node& node = qp == opened.get() ? client : server;
      ASSERT_TRUE(qp->post_receive({1, node.slot(0)}).ok());
      ASSERT_TRUE(qp->start({}).ok());
    }
    ASSERT_TRUE(server.wait([&] {
      client.step();
      return opened->state() == QueuePairState::kConnected && accepted->state() == QueuePairState::kConnected;
    }));
    pairs.push_back(std::move(opened));
    pairs.push_back(std::move(accepted));
  };
  connect_one();
  const size_t before = open_descriptors();
  const size_t mappings = mapped_test_files();
  for (int i = 0; i < 20; ++i) connect_one();
  EXPECT_EQ(open_descriptors(), before + 40 + 1);
  EXPECT_EQ(mapped_test_files(), mappings) << "one mapping serves all connections";
}

TEST_F(TwoProcesses, MessagesOfAllLengthsComeWhole) {
  begin();
  EXPECT_EQ(ask("echo"), "begun");
  for (size_t length_bytes = 0; length_bytes <= kSlotBytes; ++length_bytes) {
    std::string message(length_bytes, '\0');
    for (size_t i = 0; i < length_bytes; ++i) message[i] = static_cast<char>(i * 31 + length_bytes);
    EXPECT_EQ(ask(message), message) << length_bytes;
  }
}

TEST(ShmProvider, ReceivesNeedSharedMemory) {
  Node server;
  server.listen(test_path("plain"));
  auto opened = server.device->open(*server.cq, server.listener->address(), {}, kNever).value();
  std::vector<std::byte> plain(64);
  auto region = server.device->register_memory({plain.data(), plain.size()}).value();
  EXPECT_EQ(opened->post_receive({1, {plain.data(), 64, region.get()}}).code(), StatusCode::kFailedPrecondition);
}

TEST(ShmProvider, AStaleSocketIsReplacedAndALiveOneIsNot) {
  const std::string path = test_path("stale");
  ChildProcess former([&] {
    auto device = create_shm_device();
    auto listener = device->listen(path, {});
    _exit(listener.ok() ? 0 : 1);  // without its destructor: the file stays
  });
  ASSERT_EQ(former.exit_code(), 0);
  ASSERT_EQ(access(path.c_str(), F_OK), 0);
  auto device = create_shm_device();
  auto listener = device->listen(path, {});
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto second = device->listen(path, {});
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(path), std::string::npos);
  listener.value().reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "the listener takes its file away";
}

TEST(ShmProvider, AFileThatIsNoSocketIsKept) {
  const std::string path = test_path("file");
  std::ofstream(path) << "precious";
  EXPECT_EQ(create_shm_device()->listen(path, {}).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  unlink(path.c_str());
}

TEST(ShmProvider, BareNamesLiveInTheUsersOwnDirectory) {
  const std::string directory = "/tmp/rrpc-shm-test-run-" + std::to_string(getpid());
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  setenv("XDG_RUNTIME_DIR", directory.c_str(), 1);
  auto device = create_shm_device();
  {
    auto listener = device->listen("foo", {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    EXPECT_EQ(listener.value()->address(), directory + "/rrpc/foo.sock");
    struct stat info{};
    ASSERT_EQ(stat((directory + "/rrpc").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
  chmod((directory + "/rrpc").c_str(), 0777);
  EXPECT_EQ(device->listen("foo", {}).status().code(), StatusCode::kPermissionDenied);
  rmdir((directory + "/rrpc").c_str());
  rmdir(directory.c_str());
  unsetenv("XDG_RUNTIME_DIR");
}

TEST(ShmProvider, BadAddressesAreNamed) {
  auto device = create_shm_device();
  for (const std::string& address : {std::string(), std::string("a/b"), std::string(".hidden"), std::string("sp ace"),
                                     std::string(200, 'x'), "/" + std::string(200, 'x'), std::string("/tmp/")})
    EXPECT_EQ(device->listen(address, {}).status().code(), StatusCode::kInvalidArgument) << address;
  EXPECT_EQ(device->listen("/no/such/directory/x.sock", {}).status().code(), StatusCode::kNotFound);
}

// Runs `attempt` as another user; what it returns comes back.
std::string as_other_user(const std::function<std::string()>& attempt) {
  int channel[2];
  EXPECT_EQ(pipe2(channel, O_CLOEXEC), 0);
  ChildProcess other([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const std::string text = attempt();
    (void)!write(channel[1], text.data(), text.size());
    _exit(0);
  });
  close(channel[1]);
  std::string text(512, '\0');
  const ssize_t count = read(channel[0], text.data(), text.size());
  close(channel[0]);
  EXPECT_EQ(other.exit_code(), 0);
  return text.substr(0, count > 0 ? static_cast<size_t>(count) : 0);
}

std::string connect_and_report(const std::string& path) {
  Node node;
  auto opened = node.device->open(*node.cq, path, {}, deadline_after(now_ns(), kSecond));
  if (!opened.ok()) return opened.status().to_string();
  node.begin(std::move(opened).value());
  if (!node.wait([&] { return node.connected() || node.dead(); })) return "hangs";
  return node.connected() ? "connected, " + std::string(node.qp->bulk_method()) : node.qp->error().to_string();
}

TEST(ShmProvider, OtherUsersAreRefusedUnlessLetIn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string path = test_path("users");
  const std::string open_path = test_path("everyone");
  ChildProcess server([&] {
    Node node;
    node.listen(path);
    (void)node.wait([&] { return !node.listener->accept(*node.cq, {}).ok(); });
    node.listen(open_path, true);
    EXPECT_TRUE(node.wait([&] {
      if (!node.qp) node.qp = node.listener->accept(*node.cq, {}).value();
      if (node.qp && node.qp->state() == QueuePairState::kInit) (void)node.qp->start({});
      return node.qp && node.dead();
    }));
  });
  Node watcher;
  ASSERT_TRUE(watcher.wait([&] { return access(path.c_str(), F_OK) == 0; }));
  struct stat info{};
  ASSERT_TRUE(watcher.wait([&] { return stat(path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600; }));
  const std::string kept_out = as_other_user([&] { return connect_and_report(path); });
  EXPECT_TRUE(kept_out.starts_with("PERMISSION_DENIED")) << kept_out;
  chmod(path.c_str(), 0666);  // even so
  const std::string refused = as_other_user([&] { return connect_and_report(path); });
  EXPECT_TRUE(refused.starts_with("PERMISSION_DENIED")) << refused;
  EXPECT_NE(refused.find("lets no other user in"), std::string::npos) << refused;
  ASSERT_TRUE(watcher.wait([&] { return stat(open_path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0666; }));
  const std::string let_in = as_other_user([&] { return connect_and_report(open_path); });
  EXPECT_EQ(let_in, "connected, staged") << "the server is root, and doesn't read the other's memory all the same";
  EXPECT_EQ(server.exit_code(), 0);
}

}  // namespace
}  // namespace rrpc::provider::shm
