// Peers that break the rules of the shm provider: each loses its connection with an error that names the fault, and
// the server goes on.
#include <fcntl.h>
#include <sys/mman.h>

#include "shm_peers.h"
#include "shm_raw_peer.h"

namespace rrpc::provider::shm {
namespace {

class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override { server_.listen(path_); }

  void accept() {
    std::unique_ptr<QueuePair> made;
    ASSERT_TRUE(server_.wait([&] {
      auto accepted = server_.listener->accept(*server_.cq, {});
      if (accepted.ok()) made = std::move(accepted).value();
      return made != nullptr;
    }));
    server_.begin(std::move(made));
  }
  // The queue pair dies naming the fault, and the next client is served.
  void expect_fault(const std::string& fault, bool protocol_error = true) {
    ASSERT_TRUE(server_.wait([&] { return server_.dead(); })) << "nothing noticed, expected: " << fault;
    EXPECT_EQ(server_.qp->error().is_protocol_error(), protocol_error) << server_.qp->error().to_string();
    EXPECT_NE(server_.qp->error().message().find(fault), std::string::npos) << server_.qp->error().to_string();
    size_t flushed = 0;
    while (server_.step() > 0) {
    }
    for (const Completion& completion : server_.completions) flushed += completion.opcode == Opcode::kReceive;
    EXPECT_EQ(flushed, kSlotCount);
    server_.completions.clear();
    server_.qp.reset();
    expect_service();
  }
  void expect_service() {
    auto opened = server_.device->open(*server_.cq, path_, {}, kNever);
    ASSERT_TRUE(opened.ok());
    std::unique_ptr<QueuePair> client = std::move(opened).value();
    ASSERT_TRUE(client->start({}).ok());
    accept();
    ASSERT_TRUE(server_.wait([&] { return client->state() == QueuePairState::kConnected && server_.connected(); }));
    client.reset();
    server_.qp.reset();
    server_.completions.clear();
  }
  // A peer whose handshake was good.
  std::unique_ptr<RawPeer> connected_peer() {
    auto peer = std::make_unique<RawPeer>(path_);
    accept();
    peer->adopt_other();
    peer->send_setup();
    peer->send(encode_ready(false));
    EXPECT_TRUE(server_.wait([&] { return server_.connected(); }));
    return peer;
  }

  std::string path_ = test_path("hostile");
  Node server_;
};

TEST_F(HostilePeer, OtherProtocolsAreNamed) {
  const std::pair<std::string, std::string> cases[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the peer speaks HTTP, not rrpc"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the peer speaks HTTP, not rrpc"},
      {"\x16\x03\x01 hello hello", "the peer speaks TLS, not rrpc"},
      {"rrpc-tcp........", "wrong magic"},
      {std::string(64, '\xff'), "wrong magic"},
      {std::string("rrpc-shm\x09\0\0\0\0\0\0\0", 16), "the peer speaks version 9 of rrpc over shm, this is version 2"},
  };
  for (const auto& [bytes, fault] : cases) {
    RawPeer peer(path_);
    peer.send(as_bytes(bytes));
    accept();
    expect_fault(fault);
  }
}

TEST_F(HostilePeer, AHangUpDuringSetUpIsUnavailable) {
  {
    RawPeer peer(path_);
  }
  accept();
  expect_fault("peer closed", false);
}

TEST_F(HostilePeer, ASilentPeerBlocksNobody) {
  RawPeer silent(path_);
  accept();
  std::unique_ptr<QueuePair> waiting = std::move(server_.qp);
  expect_service();
  EXPECT_EQ(waiting->state(), QueuePairState::kConnecting);
}

TEST_F(HostilePeer, BadGeometryIsNamed) {
  const auto with = [](auto change) {
    SetupNotice setup = RawPeer::good_setup();
    change(setup);
    return setup;
  };
  const std::pair<SetupNotice, std::string> cases[] = {
      {with([](SetupNotice& s) { s.ring_entries = 3; }), "a receive ring of 3 entries"},
      {with([](SetupNotice& s) { s.ring_entries = 0; }), "a receive ring of 0 entries"},
      {with([](SetupNotice& s) { s.ring_entries = 1u << 31; }), "a receive ring of 2147483648 entries"},
      {with([](SetupNotice& s) { s.exposure_count = 1; }), "an exposure table of 1 entries"},
      {with([](SetupNotice& s) { s.segment_bytes = 4096; }), "a control segment of 4096 bytes"},
      {with([](SetupNotice& s) { s.segment_bytes = ~0ull; }), "a control segment of"},
      {with([](SetupNotice& s) { s.private_bytes = 57; }), "57 bytes of private data"},
  };
  for (const auto& [setup, fault] : cases) {
    RawPeer peer(path_);
    peer.send(encode_setup(setup), peer.control_fd());
    accept();
    expect_fault(fault);
  }
}

TEST_F(HostilePeer, BadDescriptorsAreNamed) {
  const size_t bytes = ControlSegment::segment_bytes(16);
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(bytes)), 0);
  auto small = SharedMapping::create("small", 4096, true).value();
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::pair<int, std::string> cases[] = {
      {-1, "lacks its descriptor"},
      {unsealed.get(), "not sealed against shrinking"},
      {small.fd(), "has 4096 bytes, it announced"},
      {null.get(), "not sealed against shrinking"},
  };
  for (const auto& [fd, fault] : cases) {
    RawPeer peer(path_);
    peer.send(encode_setup(RawPeer::good_setup()), fd);
    accept();
    expect_fault(fault);
  }
}

TEST_F(HostilePeer, BadFramesAreNamed) {
  const std::pair<std::string, std::string> cases[] = {
      {std::string("\x77\0\0\0", 4), "unknown message type 119"},
      {std::string("\x05\x01\0\0", 4), "unknown message type 5"},
      {std::string("\0\0\0\0", 4), "unknown message type 0"},
      {std::string("\x05\0\xff\xff", 4), "a message of 65535 bytes"},
      {std::string("\x03\0\0\0", 4), "lacks its descriptor"},
      {std::string("\x04\0\x02\0ab", 6), "DROP_SLAB of 2 bytes"},
      {std::string("\x06\0\0\0", 4), "GOODBYE of 0 bytes"},
      {std::string("\x02\0\4\0\1\0\0\0", 8), "READY twice"},
  };
  for (const auto& [bytes, fault] : cases) {
    auto peer = connected_peer();
    peer->send(as_bytes(bytes));
    expect_fault(fault);
  }
}

TEST_F(HostilePeer, MessagesOutOfOrderAreNamed) {
  {
    RawPeer peer(path_);
    peer.send(as_bytes(std::string("rrpc-shm\2\0\0\0\0\0\0\0\5\0\0\0", 20)));
    accept();
    expect_fault("first message is not SETUP");
  }
  auto peer = connected_peer();
  peer->send(Frame(MessageType::kSetup, std::as_bytes(std::span("again"))), peer->control_fd());
  expect_fault("SETUP twice");
}

TEST_F(HostilePeer, BadSlabsAreNamed) {
  auto memory = SharedMapping::create("slab", 8192, true).value();
  const std::pair<SlabNotice, std::string> cases[] = {
      {{1, 1, 0x1000, 4096}, "has 8192 bytes, it announced 4096"},
      {{1, 1, 0x1000, 0}, "impossible range"},
      {{1, 1, ~0ull, 8192}, "impossible range"},
      {{1, 7, 0x1000, 8192}, "impossible range"},
  };
  for (const auto& [notice, fault] : cases) {
    auto peer = connected_peer();
    peer->send(encode_slab(notice), memory.fd());
    expect_fault(fault);
  }
  auto peer = connected_peer();
  for (int i = 0; i < 2; ++i) peer->send(encode_slab({1, 1, 0x1000, 8192}), memory.fd());
  expect_fault("slab 1 twice");
}

TEST_F(HostilePeer, ALandingLongerThanItsReceiveIsNamed) {
  auto peer = connected_peer();
  ReceiveEntry& entry = peer->other().receive(0);
  entry.landed_bytes.store(1 << 30);
  entry.state.store(landed_state(0));
  expect_fault("a message of 1073741824 bytes came for a shorter receive");
}

TEST_F(HostilePeer, ALandingLongerThanItsEntryIsNamed) {
  auto peer = connected_peer();
  ReceiveEntry& entry = peer->other().receive(0);
  entry.landed_bytes.store((kEntryMessageBytes + 1) | kLandedInEntry);
  entry.state.store(landed_state(0));
  expect_fault("a message of 233 bytes came for a shorter receive");
}

TEST_F(HostilePeer, AMessageInAnEntryThatIsLongerThanTheReceiveIsRefused) {
  auto peer = connected_peer();
  ReceiveEntry& entry = peer->control().receive(0);
  entry.posted_bytes.store(3);
  entry.state.store(posted_state(0));
  EXPECT_TRUE(server_.send("four").ok());
  EXPECT_TRUE(server_.wait([&] { return server_.dead(); }));
  EXPECT_EQ(entry.landed_bytes.load() & kLandedInEntry, 0U);
}

// Of a message that doesn't fit into an entry.
const std::string kLong(kEntryMessageBytes + 1, 'x');

TEST_F(HostilePeer, ReceivesPostedOutsideTheirSlabAreNamed) {
  auto memory = SharedMapping::create("slab", 8192, true).value();
  struct Case {
    uint32_t slab_id;
    uint64_t offset_bytes;
  };
  for (const Case& bad : {Case{77, 0}, Case{1, 8192}, Case{1, ~0ull}, Case{1, 8192 - kLong.size() + 1}}) {
    auto peer = connected_peer();
    peer->send(encode_slab({1, 1, 0x1000, 8192}), memory.fd());
    ReceiveEntry& entry = peer->control().receive(0);
    entry.slab_id.store(bad.slab_id);
    entry.offset_bytes.store(bad.offset_bytes);
    entry.posted_bytes.store(~0u);
    entry.state.store(posted_state(0));
    EXPECT_TRUE(server_.send(kLong).ok());
    expect_fault("the peer posted a receive outside its slab");
  }
}

TEST_F(HostilePeer, ExposuresThatLieAreRefused) {
  auto memory = SharedMapping::create("slab", 8192, true).value();
  struct Case {
    uint32_t rights;
    uint32_t slab_id;
    uint64_t address;
    uint64_t length_bytes;
    std::string fault;
  };
  const Case cases[] = {
      {kRemoteRead | uint32_t{kMapped}, 1, 0x1000, 1 << 30, "refused"},       // beyond the slab
      {kRemoteRead | uint32_t{kMapped}, 1, 0, 1 << 30, "refused"},            // before it
      {kRemoteRead | uint32_t{kMapped}, 9, 0x1000, 1 << 30, "never shared"},  // of none
      {kRemoteRead | uint32_t{kOrdinary}, 0, 0x1000, 1 << 30, "can't reach"},
      {0, 1, 0x1000, 1 << 30, "refused"},
  };
  SharedBytes target(16384);
  auto region = server_.device->register_memory(shared_range(target)).value();
  for (const Case& lie : cases) {
    auto peer = connected_peer();
    peer->send(encode_slab({1, 1, 0x1000, 8192}), memory.fd());
    ExposureEntry& entry = peer->control().exposure(5);
    entry.rights.store(lie.rights);
    entry.slab_id.store(lie.slab_id);
    entry.address.store(lie.address);
    entry.length_bytes.store(lie.length_bytes);
    entry.generation.store(3);
    const Sge sge{target.data(), 16384, region.get()};
    EXPECT_NE(server_.transfer(Opcode::kRead, sge, lie.address, 5 | 3 << kExposureIndexBits), WcStatus::kSuccess);
    EXPECT_NE(server_.qp->error().message().find(lie.fault), std::string::npos) << server_.qp->error().to_string();
    server_.qp.reset();
    server_.step();
    server_.completions.clear();
  }
  expect_service();
}

// Senders that stopped in the middle of their copies: their victims end at once. Waiting for each slot in turn would
// take minutes.
TEST_F(HostilePeer, ClaimsThatAreNeverCompletedHoldUpNobody) {
  constexpr int kPeers = 100;
  const TimeNs start = now_ns();
  for (int i = 0; i < kPeers; ++i) {
    auto peer = connected_peer();
    for (uint32_t slot = 0; slot < kSlotCount; ++slot) peer->other().receive(slot).state.store(claimed_state(slot));
    server_.qp->disconnect("enough");
    expect_fault("enough", false);
  }
  EXPECT_LT(now_ns() - start, 10 * kSecond);
}

class HostileWriter : public HostilePeer {
 protected:
  void SetUp() override {
    HostilePeer::SetUp();
    peer_ = connected_peer();
    rkey_ = server_.qp->expose(*region_, memory_.data(), memory_.size(), kRemoteWrite).value();
    active_write().store(rkey_);
  }
  void TearDown() override { server_.qp.reset(); }
  std::atomic<uint32_t>& active_write() { return peer_->other().header().active_write; }

  SharedBytes memory_ = SharedBytes(4096);
  std::unique_ptr<MemoryRegion> region_ = server_.device->register_memory(shared_range(memory_)).value();
  std::unique_ptr<RawPeer> peer_;
  uint32_t rkey_ = 0;
};

TEST_F(HostileWriter, ARevocationIsUnderWayUntilTheWriteIsOver) {
  EXPECT_FALSE(server_.qp->revoke(rkey_));
  EXPECT_TRUE(server_.qp->revoking(rkey_));
  EXPECT_FALSE(server_.qp->revoke(rkey_)) << "asked again, it is still under way";
  active_write().store(0);
  EXPECT_FALSE(server_.qp->revoking(rkey_));
  active_write().store(rkey_ ^ 1);
  EXPECT_FALSE(server_.qp->revoking(rkey_));
}

TEST_F(HostileWriter, TheEndOfTheConnectionIsNotTheEndOfTheWrite) {
  server_.qp->disconnect("enough");
  EXPECT_FALSE(server_.qp->revoke(rkey_));
  EXPECT_TRUE(server_.qp->revoking(rkey_));
  peer_.reset();
  EXPECT_FALSE(server_.qp->revoking(rkey_)) << "nobody is there to write";
}

TEST_F(HostileWriter, AnEndlessWriteIsDisbelievedAfterAWhile) {
  EXPECT_FALSE(server_.qp->revoke(rkey_));
  EXPECT_TRUE(server_.wait([&] { return !server_.qp->revoking(rkey_); }));
  EXPECT_EQ(active_write().load(), rkey_);
}

// The peer maps and unmaps one file after the other, `count` times.
void flood_with_files(RawPeer& peer, int count) {
  auto memory = SharedMapping::create("slab", 8192, true).value();
  for (uint32_t id = 1; id <= static_cast<uint32_t>(count); ++id) {
    peer.send(encode_slab({id, 1, 0x1000, 8192}), memory.fd());
    peer.send(encode_drop_slab(id));
  }
}

// Mapping a thousand files in one go would take some ten milliseconds of everybody's.
TEST_F(HostilePeer, AFloodOfFilesIsTakenInPieceByPiece) {
  auto peer = connected_peer();
  flood_with_files(*peer, 80);
  peer.reset();
  int looks = 0;
  for (; !server_.dead() && looks < 1000; ++looks) {
    server_.cq->look_at_wait_handles();
    server_.step();
  }
  EXPECT_GE(looks, 80 * 2 / 16);
  EXPECT_LT(looks, 100);
}

TEST_F(HostilePeer, WhatIsBehindAFloodOfFilesIsAwaited) {
  auto peer = connected_peer();
  auto memory = SharedMapping::create("slab", 8192, true).value();
  flood_with_files(*peer, 40);
  peer->send(encode_slab({1000, 1, 0x1000, 8192}), memory.fd());
  ReceiveEntry& entry = peer->control().receive(0);
  entry.slab_id.store(1000);
  entry.posted_bytes.store(4096);
  entry.state.store(posted_state(0));
  ExposureEntry& exposure = peer->control().exposure(5);
  exposure.rights.store(kRemoteRead | uint32_t{kMapped});
  exposure.slab_id.store(1000);
  exposure.address.store(0x1000);
  exposure.length_bytes.store(8192);
  exposure.generation.store(3);
  std::memcpy(memory.data() + 4096, "read", 4);

  SharedBytes target(4096);
  auto region = server_.device->register_memory(shared_range(target)).value();
  EXPECT_TRUE(server_.send(kLong).ok());
  const Sge sge{target.data(), 4096, region.get()};
  EXPECT_EQ(server_.transfer(Opcode::kRead, sge, 0x2000, 5 | 3 << kExposureIndexBits), WcStatus::kSuccess)
      << server_.qp->error().to_string();
  EXPECT_EQ(entry.state.load(), landed_state(0));
  EXPECT_EQ(std::memcmp(memory.data(), kLong.data(), kLong.size()), 0);
  EXPECT_EQ(std::memcmp(target.data(), "read", 4), 0);
}

TEST_F(HostilePeer, AFloodOfDoorbellsIsOnlyNoise) {
  auto peer = connected_peer();
  const Frame bell(MessageType::kDoorbell);
  for (int i = 0; i < 100; ++i) peer->send(bell);
  for (int i = 0; i < 1000; ++i) server_.step();
  EXPECT_TRUE(server_.connected());
  peer.reset();
  expect_fault("peer closed", false);
}

}  // namespace
}  // namespace rrpc::provider::shm
