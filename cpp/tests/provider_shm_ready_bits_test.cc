// A process with many connections to one server raises a bit for each, and rings one bell for all.
#include <fcntl.h>
#include <sys/mman.h>

#include <bit>
#include <set>
#include <tuple>

#include "provider/ready_bits.h"
#include "shm_peers.h"
#include "shm_raw_peer.h"

namespace rrpc::provider::shm {
namespace {

constexpr size_t kWithoutBits = 8;  // the first connections of a process
constexpr size_t kCount = kWithoutBits + 4;

// Connections with a completion queue each, as a driver has them.
class ReadyBitsTest : public ::testing::Test {
 protected:
  struct Pair {
    Node server;
    Node client;
  };

  void SetUp() override { listening_.listen(path_); }

  std::unique_ptr<Pair> connect() {
    auto pair = std::make_unique<Pair>();
    pair->client.begin(pair->client.device->open(*pair->client.cq, path_, {}, kNever).value());
    std::unique_ptr<QueuePair> accepted;
    EXPECT_TRUE(pair->client.wait([&] {
      accepted = listening_.listener->accept(*pair->server.cq, {}).value();
      return accepted != nullptr;
    }));
    pair->server.begin(std::move(accepted));
    pair->server.meanwhile = [client = &pair->client] { client->step(); };
    EXPECT_TRUE(pair->server.wait([&] { return pair->client.connected() && pair->server.connected(); }));
    return pair;
  }
  // Until its client knows that it has a bit, where it has.
  NextMessage next_of(Pair& pair) {
    pair.client.cq->look_at_wait_handles();
    pair.client.step();
    return pair.server.cq->next_message();
  }
  void connect_many() {
    for (size_t i = 0; i < kCount; ++i) {
      pairs_.push_back(connect());
      next_.push_back(next_of(*pairs_.back()));
    }
    bits_ = next_.back().bits;
    ASSERT_NE(bits_, nullptr);
    (void)bits_->take(0);  // raised for what might have landed before
  }
  bool bell_rings(Pair& pair) { return pair.server.sleep_on_handles(0) > 0; }

  std::string path_ = test_path("bits");
  Node listening_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<NextMessage> next_;
  ReadyBits* bits_ = nullptr;
};

TEST_F(ReadyBitsTest, EachConnectionButTheFirstHasOneOfItsOwn) {
  connect_many();
  std::set<uint32_t> given;
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NE(next_[i].word, nullptr);
    EXPECT_EQ(next_[i].bits, i < kWithoutBits ? nullptr : bits_) << i;
    if (next_[i].bits != nullptr) given.insert(next_[i].bit);
  }
  EXPECT_EQ(given.size(), kCount - kWithoutBits);
  EXPECT_EQ(bits_->word_count(), 1u);
}

TEST_F(ReadyBitsTest, AMessageRaisesItsConnectionsBit) {
  connect_many();
  for (size_t i = kWithoutBits; i < kCount; ++i) {
    EXPECT_EQ(bits_->take(0), 0u);
    ASSERT_TRUE(pairs_[i]->client.send("it's me").ok());
    EXPECT_EQ(bits_->take(0), uint64_t{1} << next_[i].bit);
    EXPECT_TRUE(next_[i].here()) << "the message lies there before the bit is raised";
    EXPECT_EQ(pairs_[i]->server.next_message(), "it's me");
    EXPECT_FALSE(bell_rings(*pairs_[i])) << "nobody sleeps";
  }
}

TEST_F(ReadyBitsTest, OneBellWakesASleeper) {
  connect_many();
  Pair& first = *pairs_[kWithoutBits];
  Pair& second = *pairs_[kWithoutBits + 1];
  ASSERT_TRUE(bits_->arm());
  EXPECT_FALSE(bell_rings(first));
  ASSERT_TRUE(first.client.send("1").ok());
  ASSERT_TRUE(second.client.send("2").ok());
  EXPECT_TRUE(bell_rings(first));
  EXPECT_FALSE(bell_rings(second)) << "the other's is enough";
  EXPECT_FALSE(bits_->armed());
  EXPECT_FALSE(bits_->arm()) << "what was raised already rings no bell";
  EXPECT_EQ(std::popcount(bits_->take(0)), 2);
}

// Of a connection that has a bit, and of one that is armed itself.
TEST_F(ReadyBitsTest, AnUnsolicitedMessageRingsForNoneButThoseWhoWaitForAll) {
  connect_many();
  Pair& with_bit = *pairs_[kWithoutBits];
  Pair& without = *pairs_[0];
  ASSERT_TRUE(bits_->arm());
  without.server.cq->arm_for_solicited();
  for (Pair* pair : {&with_bit, &without}) {
    ASSERT_TRUE(pair->client.send("whenever you look", false).ok());
    EXPECT_FALSE(bell_rings(*pair));
    ASSERT_TRUE(pair->client.send("look now").ok());
    EXPECT_TRUE(bell_rings(*pair));
    pair->server.cq->look_at_wait_handles();
    EXPECT_EQ(pair->server.next_message(), "whenever you look");
    EXPECT_EQ(pair->server.next_message(), "look now");
    pair->server.cq->arm_for_solicited();
    pair->server.cq->arm();  // for all from now on
    ASSERT_TRUE(pair->client.send("this too", false).ok());
    EXPECT_TRUE(bell_rings(*pair));
    EXPECT_EQ(pair->server.next_message(), "this too");
  }
}

// Somebody else polls the connection before the sleeper has got to its socket.
TEST_F(ReadyBitsTest, WhoeverHearsTheBellPassesItOn) {
  connect_many();
  Pair& pair = *pairs_[kWithoutBits];
  int rang = 0;
  bits_->on_bell([&rang] { ++rang; });
  ASSERT_TRUE(bits_->arm());
  ASSERT_TRUE(pair.client.send("1").ok());
  pair.server.cq->look_at_wait_handles();
  pair.server.step();
  EXPECT_EQ(rang, 1);
  pair.server.cq->arm();  // its own bell is nobody else's
  ASSERT_NE(bits_->take(0), 0u);
  ASSERT_TRUE(bits_->arm());
  pair.client.qp->disconnect("enough");
  pair.server.cq->look_at_wait_handles();
  pair.server.step();
  EXPECT_EQ(rang, 1);
  bits_->on_bell({});
}

TEST_F(ReadyBitsTest, AClosedConnectionsBitIsTheNextOnes) {
  connect_many();
  const uint32_t bit = next_[kWithoutBits].bit;
  pairs_[kWithoutBits].reset();
  const auto pair = connect();
  const NextMessage next = next_of(*pair);
  EXPECT_EQ(next.bits, bits_);
  EXPECT_EQ(next.bit, bit);
}

TEST_F(ReadyBitsTest, AnotherProcessHasItsOwn) {
  connect_many();
  ChildProcess child([this] {
    std::vector<std::unique_ptr<Node>> clients;
    for (size_t i = 0; i < kCount; ++i) {
      clients.push_back(std::make_unique<Node>());
      clients.back()->connect(path_);
      ASSERT_TRUE(clients.back()->send("from afar").ok());
    }
    EXPECT_TRUE(clients.back()->wait([&] {
      for (const auto& client : clients) client->step();
      return clients.back()->dead();
    }));
  });
  std::vector<std::unique_ptr<Node>> servers;
  for (size_t i = 0; i < kCount; ++i) {
    servers.push_back(std::make_unique<Node>());
    std::unique_ptr<QueuePair> made;
    ASSERT_TRUE(servers[i]->wait([&] {
      made = listening_.listener->accept(*servers[i]->cq, {}).value();
      return made != nullptr;
    }));
    servers[i]->begin(std::move(made));
    EXPECT_EQ(servers[i]->next_message(), "from afar");
  }
  Node& last = *servers.back();
  ASSERT_TRUE(last.wait([&] { return last.cq->next_message().bits != nullptr; }));
  ReadyBits* const bits = last.cq->next_message().bits;
  EXPECT_NE(bits, bits_);
  uint64_t raised = 0;
  EXPECT_TRUE(last.wait([&] {
    raised |= bits->take(0);
    return std::popcount(raised) == static_cast<int>(kCount - kWithoutBits);
  }));
  EXPECT_EQ(bits_->take(0), 0u);
  servers.clear();
  EXPECT_EQ(child.exit_code(), 0);
}

// A server that breaks the rules, and the client that notices.
class HostileServer : public ::testing::Test {
 protected:
  void SetUp() override {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(socket_.get(), 1), 0);
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  std::unique_ptr<RawPeer> connected_server(Node& client) {
    client.begin(client.device->open(*client.cq, path_, {}, kNever).value());
    auto server = std::make_unique<RawPeer>(UniqueFd(::accept(socket_.get(), nullptr, nullptr)));
    server->adopt_other();
    server->send_setup();
    server->send(encode_ready(false));
    EXPECT_TRUE(client.wait([&] { return client.connected(); })) << client.qp->error().to_string();
    return server;
  }
  void expect_fault(Node& client, const std::string& fault, StatusCode code = StatusCode::kInternal) {
    ASSERT_TRUE(client.wait([&] { return client.dead(); })) << "nothing noticed, expected: " << fault;
    EXPECT_EQ(client.qp->error().code(), code) << client.qp->error().to_string();
    EXPECT_NE(client.qp->error().message().find(fault), std::string::npos) << client.qp->error().to_string();
  }

  std::string path_ = test_path("hostile-server");
  UniqueFd socket_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  SharedMapping page_ = SharedMapping::create("page", sizeof(ReadyPage), true).value();
};

TEST_F(HostileServer, GoodReadyBitsAreRaised) {
  Node client;
  const auto server = connected_server(client);
  server->send(encode_ready_bits(130), page_.fd());
  auto& page = *reinterpret_cast<ReadyPage*>(page_.data());
  ASSERT_TRUE(client.wait([&] { return server->other().header().raises_bits.load() == 1; }));
  EXPECT_EQ(page.words[2].exchange(0), uint64_t{1} << 2) << "of what may have landed before";
  server->control().receive(0).state.store(posted_state(0));
  ASSERT_TRUE(client.send("").ok());
  ASSERT_TRUE(client.wait([&] { return page.words[2].load() == uint64_t{1} << 2; }));
}

TEST_F(HostileServer, BadReadyBitsAreNamed) {
  auto small = SharedMapping::create("small", 2048, true).value();
  auto read_only = SharedMapping::create("read-only", sizeof(ReadyPage), false).value();
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), sizeof(ReadyPage)), 0);
  const uint32_t no_bit = 1;
  const StatusCode wrong = StatusCode::kInternal;
  const std::tuple<Frame, int, std::string, StatusCode> cases[] = {
      {encode_ready_bits(ReadyPage::kBits), page_.fd(), "READY_BITS of bit 32256", wrong},
      {Frame(MessageType::kReadyBits, Bytes(reinterpret_cast<const std::byte*>(&no_bit), 3)), page_.fd(),
       "READY_BITS of 3 bytes", wrong},
      {encode_ready_bits(0), -1, "lacks its descriptor", wrong},
      {encode_ready_bits(0), small.fd(), "has 2048 bytes", wrong},
      {encode_ready_bits(0), unsealed.get(), "not sealed against shrinking", wrong},
      {encode_ready_bits(0), read_only.fd(), "mapping the peer's shared memory", StatusCode::kPermissionDenied},
  };
  for (const auto& [frame, fd, fault, code] : cases) {
    Node client;
    const auto server = connected_server(client);
    server->send(frame, fd);
    expect_fault(client, fault, code);
  }
}

TEST_F(HostileServer, ReadyBitsComeOnceAndFromTheServer) {
  Node client;
  const auto server = connected_server(client);
  server->send(encode_ready_bits(1), page_.fd());
  server->send(encode_ready_bits(2), page_.fd());
  expect_fault(client, "READY_BITS out of place");

  Node serving;
  serving.listen(test_path("serving"));
  RawPeer peer(test_path("serving"));
  serving.begin(serving.listener->accept(*serving.cq, {}).value());
  peer.adopt_other();
  peer.send_setup();
  peer.send(encode_ready(false));
  peer.send(encode_ready_bits(1), page_.fd());
  expect_fault(serving, "READY_BITS out of place");
}

}  // namespace
}  // namespace rrpc::provider::shm
