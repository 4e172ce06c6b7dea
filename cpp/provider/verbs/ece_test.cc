// Enhanced connection establishment between two queue pairs that are connected by hand, with a libibverbs of the test's
// own: the software adapters have none. Its two kinds of queue pair know options as bits, and hold to those that were
// set before they were ready to receive, as far as they know them.
#include "provider/verbs/ece.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "provider/verbs/bring_up.h"

namespace {

constexpr uint32_t kVendor = 0x15b3;

struct FakeQueuePair : ibv_qp {
  explicit FakeQueuePair(uint32_t known_options, uint32_t its_vendor = kVendor)
      : ibv_qp(), vendor(its_vendor), known(known_options), holds(known_options) {}
  uint32_t vendor;
  uint32_t known;
  uint32_t holds;
  uint32_t wanted = 0;
  bool set = false;
  int query_error = 0;
  int set_error = 0;
};

FakeQueuePair& fake(ibv_qp* queue_pair) { return static_cast<FakeQueuePair&>(*queue_pair); }

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int ibv_query_ece(ibv_qp* queue_pair, ibv_ece* options) {
  const FakeQueuePair& asked = fake(queue_pair);
  if (asked.query_error == 0) *options = {.vendor_id = asked.vendor, .options = asked.holds, .comp_mask = 0};
  return asked.query_error;
}

[[gnu::visibility("default")]] int ibv_set_ece(ibv_qp* queue_pair, ibv_ece* options) {
  FakeQueuePair& told = fake(queue_pair);
  if (told.set_error != 0) return told.set_error;
  if (options->vendor_id != told.vendor || options->comp_mask != 0) return EINVAL;
  told.set = true;
  told.wanted = options->options;
  return 0;
}

int ibv_modify_qp(ibv_qp* queue_pair, ibv_qp_attr* attributes, int) {
  FakeQueuePair& modified = fake(queue_pair);
  if (attributes->qp_state == IBV_QPS_RTR && modified.set) modified.holds = modified.wanted & modified.known;
  return 0;
}
}

namespace rrpc::provider::verbs {
namespace {

Introduction sound_introduction() {
  Introduction introduction;
  introduction.queue_pair = 7;
  introduction.mtu = IBV_MTU_1024;
  return introduction;
}

// As SocketConnector introduces a queue pair, through the bytes that travel.
Introduction introduced(const Introduction& introduction) {
  std::vector<std::byte> bytes = introduction_frame(introduction);
  auto frame = take_frame(bytes);
  EXPECT_TRUE(frame.ok() && frame->has_value());
  auto parsed = parse_introduction(**frame);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *parsed;
}

Introduction offer_of(FakeQueuePair& queue_pair) {
  Introduction offer = sound_introduction();
  auto ece = query_ece(&queue_pair);
  EXPECT_TRUE(ece.ok()) << ece.status().to_string();
  offer.ece = *ece;
  return offer;
}

Result<Ece> meet(FakeQueuePair& queue_pair, const Introduction& own, const Introduction& peer) {
  return bring_to_rts(&queue_pair, Place{}, {.own = own, .peer = introduced(peer)});
}

// The server's answer has what it holds to; the client then has the same.
void connect(FakeQueuePair& client, FakeQueuePair& server) {
  const Introduction offer = offer_of(client);
  Introduction answer = offer_of(server);
  const Result<Ece> agreed = meet(server, answer, offer);
  ASSERT_TRUE(agreed.ok()) << agreed.status().to_string();
  answer.ece = *agreed;
  const Result<Ece> same = meet(client, offer, answer);
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_EQ(*same, *agreed);
}

TEST(Ece, BothEndsHoldToWhatBothKnow) {
  FakeQueuePair client(0b0111);
  FakeQueuePair server(0b1110);
  connect(client, server);
  EXPECT_EQ(server.wanted, 0b0111u) << "the client's offer, before the server's is ready to receive";
  EXPECT_EQ(server.holds, 0b0110u);
  EXPECT_EQ(client.wanted, 0b0110u) << "the server's answer";
  EXPECT_EQ(client.holds, 0b0110u);
}

TEST(Ece, AServerWithoutItAnswersNone) {
  FakeQueuePair client(0b0111);
  FakeQueuePair server(0b0111);
  server.query_error = server.set_error = EOPNOTSUPP;
  connect(client, server);
  EXPECT_FALSE(server.set);
  EXPECT_TRUE(client.set);
  EXPECT_EQ(client.holds, 0u);
}

TEST(Ece, AClientWithoutItIsAnsweredNone) {
  FakeQueuePair client(0b0111);
  FakeQueuePair server(0b0111);
  client.query_error = client.set_error = EOPNOTSUPP;
  connect(client, server);
  EXPECT_FALSE(client.set);
  EXPECT_EQ(server.holds, 0u);
}

TEST(Ece, AnotherVendorsOptionsAreNotSet) {
  FakeQueuePair client(0b0111, 0xb17e);
  FakeQueuePair server(0b0111);
  connect(client, server);
  EXPECT_EQ(server.holds, 0u);
  EXPECT_EQ(client.holds, 0u);
}

TEST(Ece, ARefusalOfTheAdapterIsAnError) {
  FakeQueuePair server(0b0111);
  const Introduction own = offer_of(server);
  server.set_error = EINVAL;
  const Result<Ece> refused = meet(server, own, own);
  EXPECT_NE(refused.status().message().find("ECE"), std::string::npos) << refused.status().to_string();
  server.query_error = EIO;
  EXPECT_FALSE(query_ece(&server).ok());
}

TEST(Ece, APeerOfTheVersionBeforeIsNamed) {
  std::vector<std::byte> bytes = introduction_frame(sound_introduction());
  bytes[4] = std::byte{1};
  const auto frame = take_frame(bytes);
  EXPECT_NE(frame.status().message().find("version 1 of verbs+tcp, this end 2"), std::string::npos)
      << frame.status().to_string();
}

TEST(Ece, MoreRetriesThanThereAreAreMalformed) {
  Introduction introduction = sound_introduction();
  for (const uint8_t retries : {0, 7, 8, 255}) {
    introduction.not_ready_retries = retries;
    std::vector<std::byte> bytes = introduction_frame(introduction);
    const auto frame = take_frame(bytes);
    EXPECT_EQ(parse_introduction(**frame).ok(), retries <= 7) << int{retries};
  }
}

TEST(Ece, AnIntroductionThatEndsEarlyOrLateIsMalformed) {
  std::vector<std::byte> bytes = introduction_frame(sound_introduction());
  const auto whole = take_frame(bytes);
  ASSERT_TRUE(whole.ok() && whole->has_value());
  ASSERT_TRUE(parse_introduction(**whole).ok());
  Frame longer = **whole;
  longer.body.emplace_back();
  EXPECT_FALSE(parse_introduction(longer).ok());
  Frame shorter = **whole;
  while (!shorter.body.empty()) {
    shorter.body.pop_back();
    EXPECT_FALSE(parse_introduction(shorter).ok()) << shorter.body.size();
  }
}

}  // namespace
}  // namespace rrpc::provider::verbs
