// What a peer may do to a tcp queue pair with a raw socket, and what addresses people type.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "provider/exposure_table.h"
#include "provider/tcp/frame.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::provider::tcp {
namespace {

std::string wire(const FrameHeader& header, std::string_view body = {}) {
  const HeaderBytes bytes = encode_header(header);
  return std::string(as_text(bytes)) + std::string(body);
}
std::string setup_frame(uint32_t read_depth = 16) {
  const auto body = encode_setup_body({.read_depth = read_depth, .private_data = {}});
  return wire(
      {.type = FrameType::kSetup, .detail = kProtocolVersion, .length_bytes = static_cast<uint32_t>(body.size())},
      as_text(body));
}
std::string patched(std::string bytes, size_t index, uint8_t value) {
  bytes[index] = static_cast<char>(value);
  return bytes;
}

// A server's end, and a raw socket in the client's place.
class TcpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = device_->listen("127.0.0.1:0", {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    listener_ = std::move(listener).value();
    auto region = device_->register_memory({.address = memory_.data(), .length_bytes = memory_.size()});
    ASSERT_TRUE(region.ok());
    region_ = std::move(region).value();
  }

  template <typename Condition>
  [[nodiscard]] bool wait_for(Condition condition) {
    const TimeNs deadline = now_ns() + 10 * kSecond;
    while (!condition()) {
      if (now_ns() >= deadline) return false;
      poll();
    }
    return true;
  }
  void poll() {
    Completion out[16];
    const size_t count = cq_->poll(out);
    completions_.insert(completions_.end(), out, out + count);
    for (const Completion& completion : std::span(out).first(count))
      if (completion.place != nullptr) std::memcpy(memory_.data(), completion.place, completion.length_bytes);
  }

  UniqueFd dial() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    where.sin_port = htons(static_cast<uint16_t>(std::stoi(listener_->address().substr(10))));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
    return fd;
  }
  // Once the client has said its first bytes.
  void accept(const QueuePairConfig& config = {}) {
    ASSERT_TRUE(wait_for([&] {
      auto accepted = listener_->accept(*cq_, config);
      if (accepted.ok()) qp_ = std::move(accepted).value();
      return qp_ != nullptr;
    }));
    ASSERT_TRUE(qp_->start({}).ok());
  }
  static void say(const UniqueFd& fd, const std::string& bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static std::string hear(const UniqueFd& fd, size_t length_bytes) {
    std::string bytes(length_bytes, '\0');
    const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  std::string hear_all(const UniqueFd& fd) {
    std::string all;
    EXPECT_TRUE(wait_for([&] {
      char part[4096];
      const ssize_t got = ::recv(fd.get(), part, sizeof(part), MSG_DONTWAIT);
      if (got > 0) all.append(part, static_cast<size_t>(got));
      return got == 0 || (got < 0 && errno != EAGAIN);
    }));
    return all;
  }
  void expect_death(const std::string& needle, bool protocol_error) {
    ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kError; })) << needle;
    EXPECT_NE(qp_->error().message().find(needle), std::string::npos)
        << qp_->error().to_string() << "\n  wanted: " << needle;
    EXPECT_EQ(qp_->error().is_protocol_error(), protocol_error) << qp_->error().to_string();
    qp_.reset();
  }
  void expect_next_client_served() {
    auto opened = device_->open(*cq_, listener_->address(), {}, kNever);
    ASSERT_TRUE(opened.ok());
    auto client = std::move(opened).value();
    ASSERT_TRUE(client->start({}).ok());
    accept();
    ASSERT_TRUE(wait_for(
        [&] { return client->state() == QueuePairState::kConnected && qp_->state() == QueuePairState::kConnected; }));
    client.reset();
    qp_.reset();
  }

  std::unique_ptr<Device> device_ = create_tcp_device();
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<CompletionQueue> cq_ = device_->create_completion_queue(1024);
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<QueuePair> qp_;
  std::vector<Completion> completions_;
};

struct BadBytes {
  const char* name;
  std::string bytes;
  const char* message;
  bool protocol_error = true;
  bool then_close = false;
};

TEST_F(TcpTest, AReasonIsCutBetweenCharacters) {
  const UniqueFd peer = dial();
  say(peer, setup_frame());
  accept();
  ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kConnected; }));
  std::string reason = "x";
  while (reason.size() < 300) reason += "\u00e9";
  qp_->disconnect(reason);
  const std::string heard = hear_all(peer);
  ASSERT_GT(heard.size(), 199u);
  EXPECT_EQ(heard.substr(heard.size() - 199), reason.substr(0, 199));
}

TEST_F(TcpTest, BadBytesEndTheirConnectionAndNameTheFault) {
  const std::string up = setup_frame();
  const std::string huge_send = wire({.type = FrameType::kSend, .length_bytes = kMessageBytesMax + 1});
  const std::vector<BadBytes> cases = {
      {"HTTP GET", "GET / HTTP/1.1\r\n\r\n", "the peer speaks HTTP, not rrpc"},
      {"HTTP POST", "POST /x HTTP/1.1\r\n", "the peer speaks HTTP, not rrpc"},
      {"an HTTP answer", "HTTP/1.1 200 OK\r\n", "the peer speaks HTTP, not rrpc"},
      {"TLS", std::string("\x16\x03\x01\x02\x00", 5), "the peer speaks TLS, not rrpc"},
      {"SSH", "SSH-2.0-OpenSSH\r\n", "the peer speaks SSH, not rrpc"},
      {"noise", "\x01\x02\x03\x04\x05", "bad frame magic 0x01"},
      {"one byte, then closed", "\xa7", "in the middle of its first frame", true, true},
      {"half a header, then closed", up.substr(0, 12), "in the middle of its first frame", true, true},
      {"half a SETUP, then closed", up.substr(0, 28), "in the middle of its first frame", true, true},
      {"another version", patched(up, 2, 9), "version 9 of the tcp protocol, this side version 1"},
      {"bad SETUP magic", patched(up, 24, 'X'), "bad magic in the SETUP frame"},
      {"short SETUP", wire({.type = FrameType::kSetup, .detail = 1, .length_bytes = 2}, "rr"), "SETUP frame of only 2"},
      {"long SETUP", wire({.type = FrameType::kSetup, .detail = 1, .length_bytes = 65}), "SETUP frame of 65 bytes"},
      {"no SETUP", wire({.type = FrameType::kSend}), "a SEND frame before SETUP"},
      {"two SETUPs", up + up, "a second SETUP"},
      {"bad magic later", up + std::string(24, 'z'), "bad frame magic 0x7a"},
      {"type 0", up + patched(wire({.type = FrameType::kSend}), 1, 0), "unknown frame type 0"},
      {"type 99", up + patched(wire({.type = FrameType::kSend}), 1, 99), "unknown frame type 99"},
      {"a huge SEND", up + huge_send, "SEND frame of 1073741825 bytes is over the limit"},
      {"a huge READ", up + wire({.type = FrameType::kReadRequest, .length_bytes = 0xffffffff}), "over the limit"},
      {"a huge GOODBYE", up + wire({.type = FrameType::kGoodbye, .length_bytes = 5000}), "GOODBYE frame of 5000"},
      {"a huge NAK", up + wire({.type = FrameType::kNak, .length_bytes = 201}), "NAK frame of 201"},
      {"WRITE_ACK with a body", up + wire({.type = FrameType::kWriteAck, .length_bytes = 1}), "WRITE_ACK frame of 1"},
      {"an unknown NAK", up + wire({.type = FrameType::kNak, .detail = 777}), "NAK of unknown kind 777"},
      {"a NAK of success", up + wire({.type = FrameType::kNak}), "NAK of unknown kind 0"},
      {"an uncalled-for response", up + wire({.type = FrameType::kReadResponse}), "READ_RESPONSE to no READ"},
      {"an uncalled-for ack", up + wire({.type = FrameType::kWriteAck, .tag = 1}), "more WRITEs than were sent"},
      {"a huge ack", up + wire({.type = FrameType::kWriteAck, .tag = 0xffffffff}), "more WRITEs than were sent"},
      {"READ with a bad key", up + wire({.type = FrameType::kReadRequest, .rkey = 77, .address = 4096}),
       "with rkey 0x0000004d refused: no such key", false},
      {"WRITE with a bad key", up + wire({.type = FrameType::kWrite, .rkey = 78, .length_bytes = 1 << 30}),
       "with rkey 0x0000004e refused: no such key", false},
      {"SEND without a receive", up + wire({.type = FrameType::kSend, .length_bytes = 3}, "abc"), "receiver not ready",
       false},
      {"an uncalled-for PUSH", up + wire({.type = FrameType::kPush}), "a PUSH frame that no SEND announced"},
      {"a huge PUSH", up + wire({.type = FrameType::kPush, .length_bytes = kPushedBytesMax + 1}),
       "PUSH frame of 1048577"},
      {"more PUSHes than may be", up + wire({.type = FrameType::kSend, .detail = kPushesMax + 1}),
       "a SEND that announces 9 PUSH frames"},
      {"a farewell", up + wire({.type = FrameType::kGoodbye, .length_bytes = 3}, "bye"),
       "peer closed the connection: bye", false},
      {"cut in a header", up + std::string("\xa7\x02"), "in the middle of a frame header", false, true},
  };
  for (const BadBytes& bad : cases) {
    SCOPED_TRACE(bad.name);
    UniqueFd peer = dial();
    say(peer, bad.bytes);
    if (bad.then_close) peer.reset();
    accept();
    expect_death(bad.message, bad.protocol_error);
    expect_next_client_served();
    if (HasFatalFailure()) return;
  }
}

TEST_F(TcpTest, BytesOneByOneMakeAFrame) {
  UniqueFd peer = dial();
  const std::string bytes = setup_frame() + wire({.type = FrameType::kSend, .length_bytes = 5}, "hello");
  say(peer, bytes.substr(0, 1));
  accept();
  ASSERT_TRUE(qp_->post_receive({.wr_id = 1, .sge = {memory_.data(), 100, region_.get()}}).ok());
  for (const char byte : bytes.substr(1)) {
    say(peer, std::string(1, byte));
    for (int i = 0; i < 3; ++i) poll();
  }
  ASSERT_TRUE(wait_for([&] { return !completions_.empty(); }));
  EXPECT_EQ(completions_[0].length_bytes, 5u);
  EXPECT_EQ(as_text(Bytes(memory_).first(5)), "hello");
}

// One poll gives some of the messages that came together, and the next one the others, though more was read meanwhile.
TEST_F(TcpTest, MessagesThatComeTogetherLieWhereTheyCame) {
  constexpr int kMessages = 8;
  constexpr size_t kMessageBytes = 20'000;  // so that one of them doesn't fit into what is read at a time
  std::vector<std::byte> receives(kMessages * kMessageBytes);
  auto region = device_->register_memory({.address = receives.data(), .length_bytes = receives.size()}).value();
  UniqueFd peer = dial();
  const int room_bytes = 1 << 20;  // nothing reads while all is said
  ASSERT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &room_bytes, sizeof(room_bytes)), 0);
  const auto message = [](int i) { return std::string(kMessageBytes, static_cast<char>('a' + i)); };
  std::string bytes = setup_frame();
  for (int i = 0; i < kMessages; ++i)
    bytes += wire({.type = FrameType::kSend, .length_bytes = kMessageBytes}, message(i));
  say(peer, bytes);
  accept();
  const auto receive = [&](int i) { return receives.data() + static_cast<size_t>(i) * kMessageBytes; };
  for (int i = 0; i < kMessages; ++i) {
    const Sge sge{receive(i), kMessageBytes, region.get()};
    ASSERT_TRUE(qp_->post_receive({.wr_id = static_cast<uint64_t>(i), .sge = sge}).ok());
  }
  Completion one[1];
  for (int i = 0; i < kMessages; ++i) {
    const TimeNs deadline = now_ns() + 10 * kSecond;
    while (cq_->poll(one) == 0) ASSERT_LT(now_ns(), deadline);
    ASSERT_EQ(one[0].wr_id, static_cast<uint64_t>(i));
    EXPECT_EQ(as_text(Bytes(one[0].place != nullptr ? one[0].place : receive(i), kMessageBytes)), message(i));
  }
  say(peer, wire({.type = FrameType::kSend, .length_bytes = 5}, "alone"));
  ASSERT_TRUE(qp_->post_receive({.wr_id = 99, .sge = {receive(0), kMessageBytes, region.get()}}).ok());
  const TimeNs deadline = now_ns() + 10 * kSecond;
  while (cq_->poll(one) == 0) ASSERT_LT(now_ns(), deadline);
  ASSERT_NE(one[0].place, nullptr) << "all of it was there";
  EXPECT_EQ(as_text(Bytes(one[0].place, one[0].length_bytes)), "alone");
}

TEST_F(TcpTest, APeerCutOffInAMessageIsUnavailable) {
  UniqueFd peer = dial();
  say(peer, setup_frame() + wire({.type = FrameType::kSend, .length_bytes = 50}, "part"));
  accept();
  ASSERT_TRUE(qp_->post_receive({.wr_id = 1, .sge = {memory_.data(), 100, region_.get()}}).ok());
  peer.reset();
  ASSERT_TRUE(wait_for([&] { return !completions_.empty(); }));
  EXPECT_EQ(completions_[0].status, WcStatus::kFlushed);
  EXPECT_EQ(qp_->error().code(), StatusCode::kUnavailable);
  EXPECT_NE(qp_->error().message().find("in the middle of a SEND frame (46 of 50 bytes missing)"), std::string::npos)
      << qp_->error().to_string();
}

// Who waits by edges polls no more after a poll that completed nothing.
TEST_F(TcpTest, AnEndThatComesWithAPartIsSeenInTheSamePoll) {
  UniqueFd peer = dial();
  say(peer, setup_frame());
  accept();
  ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kConnected; }));
  say(peer, wire({.type = FrameType::kSend, .length_bytes = 50}).substr(0, 10));
  peer.reset();
  Completion none[1];
  EXPECT_EQ(cq_->poll(none), 0u);
  EXPECT_EQ(qp_->state(), QueuePairState::kError);
}

TEST_F(TcpTest, MoreReadsThanAgreedEndTheConnection) {
  UniqueFd peer = dial();
  say(peer, setup_frame());
  accept({.read_depth = 2});
  ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kConnected; }));
  auto rkey = qp_->expose(*region_, memory_.data(), 64, kRemoteRead);
  ASSERT_TRUE(rkey.ok());
  std::string reads;
  for (uint32_t i = 0; i < 3; ++i) {
    reads += wire({.type = FrameType::kReadRequest,
                   .rkey = *rkey,
                   .address = reinterpret_cast<uint64_t>(memory_.data()),
                   .length_bytes = 64,
                   .tag = i});
  }
  say(peer, reads);
  expect_death("more READs in flight than the 2 agreed on", true);
}

TEST_F(TcpTest, PushesAreHeldToWhatWasAnnounced) {
  const auto send = [](uint16_t pushes) { return wire({.type = FrameType::kSend, .detail = pushes}); };
  const auto push = [](size_t length_bytes) {
    return wire({.type = FrameType::kPush, .length_bytes = static_cast<uint32_t>(length_bytes)},
                std::string(length_bytes, 'x'));
  };
  const std::vector<BadBytes> cases = {
      {"a SEND too early", send(2) + push(1) + send(0), "a SEND frame where a SEND had announced PUSH frames"},
      {"one too many", send(1) + push(1) + push(1), "a PUSH frame that no SEND announced"},
      {"too much in all", send(2) + push(1000) + wire({.type = FrameType::kPush, .length_bytes = kPushedBytesMax}),
       "PUSH frames of more than 1048576 bytes behind one SEND"},
      {"a farewell", send(2) + push(1) + wire({.type = FrameType::kGoodbye, .length_bytes = 3}, "bye"),
       "peer closed the connection: bye", false},
      {"cut in a push", send(1) + push(1000).substr(0, 500), "in the middle of a PUSH frame (524 of 1000", false, true},
  };
  for (const BadBytes& bad : cases) {
    SCOPED_TRACE(bad.name);
    UniqueFd peer = dial();
    say(peer, setup_frame());
    accept();
    for (uint64_t i = 0; i < 2; ++i)
      ASSERT_TRUE(qp_->post_receive({.wr_id = i, .sge = {memory_.data(), 100, region_.get()}}).ok());
    say(peer, bad.bytes);
    if (bad.then_close) peer.reset();
    expect_death(bad.message, bad.protocol_error);
    if (HasFatalFailure()) return;
  }
}

TEST_F(TcpTest, AReadResponseOfAnotherLengthOrTagIsRefused) {
  for (const bool bad_tag : {false, true}) {
    UniqueFd peer = dial();
    say(peer, setup_frame());
    accept();
    ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kConnected; }));
    const Sge sge{memory_.data(), 64, region_.get()};
    const WorkRequest read{.wr_id = 1, .opcode = Opcode::kRead, .sges = {&sge, 1}};
    ASSERT_TRUE(qp_->post_send({&read, 1}).ok());
    say(peer, wire({.type = FrameType::kReadResponse, .length_bytes = bad_tag ? 64u : 65u, .tag = bad_tag ? 1u : 0u}));
    expect_death(bad_tag ? "another READ than the oldest" : "READ_RESPONSE of 65 bytes to a READ of 64", true);
  }
}

TEST_F(TcpTest, TheRefusedPeerIsToldWhy) {
  UniqueFd peer = dial();
  say(peer, setup_frame() + wire({.type = FrameType::kSend, .length_bytes = 3, .tag = 42}, "abc"));
  accept();
  const std::string heard = hear_all(peer);
  const auto setup = decode_header(as_bytes(heard));
  ASSERT_TRUE(setup.ok());
  const std::string rest = heard.substr(kFrameHeaderBytes + setup->length_bytes);
  const auto nak = decode_header(as_bytes(rest));
  ASSERT_TRUE(nak.ok());
  EXPECT_EQ(nak->type, FrameType::kNak);
  EXPECT_EQ(nak->tag, 42u);
  EXPECT_EQ(nak->detail, static_cast<uint16_t>(WcStatus::kRnrRetryExceeded));
  EXPECT_NE(rest.find("receiver not ready"), std::string::npos);
}

TEST_F(TcpTest, AClientOfAnotherVersionGetsThisSidesVersion) {
  UniqueFd peer = dial();
  say(peer, patched(setup_frame(), 2, 9));
  accept();
  const std::string heard = hear_all(peer);
  const auto setup = decode_header(as_bytes(heard));
  ASSERT_TRUE(setup.ok());
  EXPECT_EQ(setup->type, FrameType::kSetup);
  EXPECT_EQ(setup->detail, kProtocolVersion);
}

TEST_F(TcpTest, APeerThatReadsNothingBlocksNobody) {
  UniqueFd peer = dial();
  say(peer, setup_frame());
  accept({.send_depth = 4000});
  ASSERT_TRUE(wait_for([&] { return qp_->state() == QueuePairState::kConnected; }));
  const Sge sge{memory_.data(), 4096, region_.get()};
  for (uint64_t i = 0; i < 4000; ++i) {
    const WorkRequest request{.wr_id = i, .sges = {&sge, 1}};
    ASSERT_TRUE(qp_->post_send({&request, 1}).ok());
  }
  qp_->disconnect("tired of waiting");
  ASSERT_TRUE(wait_for([&] { return completions_.size() == 4000; }));
  EXPECT_EQ(completions_.back().status, WcStatus::kFlushed);
  expect_next_client_served();
}

TEST_F(TcpTest, BadAddressesSayWhatToWrite) {
  for (const char* address : {"", "localhost", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "::1:80",
                              "[::1", "[::1]", "[]:80", "127.0.0.1:-1"}) {
    const auto listened = device_->listen(address, {});
    ASSERT_FALSE(listened.ok()) << address;
    EXPECT_EQ(listened.status().code(), StatusCode::kInvalidArgument) << listened.status().to_string();
    EXPECT_NE(listened.status().message().find("write host:port"), std::string::npos) << listened.status().to_string();
  }
  EXPECT_FALSE(device_->open(*cq_, ":80", {}, kNever).ok());
  EXPECT_FALSE(device_->open(*cq_, "127.0.0.1:0", {}, kNever).ok());
  const auto unknown = device_->open(*cq_, "no-such-host.invalid:80", {}, deadline_after(now_ns(), 5 * kSecond));
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("no-such-host.invalid"), std::string::npos) << unknown.status().to_string();
}

TEST_F(TcpTest, HostNamesAndIpv6Work) {
  for (const char* address : {"localhost:0", "[::1]:0"}) {
    auto listened = device_->listen(address, {});
    if (!listened.ok() && address[0] == '[') GTEST_SKIP() << "no IPv6 here: " << listened.status().to_string();
    ASSERT_TRUE(listened.ok()) << listened.status().to_string();
    listener_ = std::move(listened).value();
    EXPECT_FALSE(listener_->address().ends_with(":0"));
    expect_next_client_served();
  }
}

TEST_F(TcpTest, AnyInterfaceCanBeListenedOn) {
  auto listened = device_->listen("0.0.0.0:0", {});
  ASSERT_TRUE(listened.ok()) << listened.status().to_string();
}

TEST(ExposureTable, KeysAreScatteredAndNeverComeBackSoon) {
  std::vector<std::byte> memory(16);
  const auto device = create_tcp_device();
  const auto region = std::move(device->register_memory({memory.data(), memory.size()})).value();
  ExposureTable table(1234);
  std::vector<uint32_t> keys;
  for (int i = 0; i < 100'000; ++i) {
    keys.push_back(*table.add(*region, memory.data(), 16, kRemoteRead));
    EXPECT_TRUE(table.remove(keys.back()));
  }
  EXPECT_EQ(table.size(), 0u);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
  EXPECT_GT(keys.back() - keys.front(), 0xf0000000u);
}

TEST(ExposureTable, ALimitIsNamed) {
  std::vector<std::byte> memory(16);
  const auto device = create_tcp_device();
  const auto region = std::move(device->register_memory({memory.data(), memory.size()})).value();
  ExposureTable table(7);
  for (uint32_t i = 0; i < ExposureTable::kExposuresMax; ++i) {
    ASSERT_TRUE(table.add(*region, memory.data(), 16, kRemoteRead).ok());
  }
  EXPECT_EQ(table.add(*region, memory.data(), 16, kRemoteRead).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace rrpc::provider::tcp
