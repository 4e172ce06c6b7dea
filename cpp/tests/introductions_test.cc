// Introductions: what a peer says of them, however it says it, and how many wait.
#include "driver/introductions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

namespace rrpc::driver {
namespace {

constexpr TimeNs kHalfAMinute = 30 * kSecond;

// Whose proof is the message itself, as far as it has room.
struct FakeTls : provider::TlsContext {
  Result<std::unique_ptr<provider::TlsChannel>> open(const std::string&) override { return unavailable("a fake"); }
  provider::Authenticator authenticate(const provider::ExportedKey&, Bytes message) const override {
    provider::Authenticator proof{};
    std::copy_n(message.begin(), std::min(message.size(), proof.size()), proof.begin());
    return proof;
  }
  Status reload() override { return {}; }
  void note_refused(const std::string&) override {}
  Refusals refusals() const override { return {}; }
};

Introduction introduction(const std::string& id) {
  return {.id = id, .key = {}, .tls = std::make_shared<FakeTls>(), .peer = {}, .introducer = {}};
}

TEST(Introductions, AskedProtectionIsOneShortLine) {
  for (const std::string& said : {std::string(60000, 'x'), std::string("sign\n\x1b[2Jencrypt"), std::string(),
                                  std::string("\0", 1), std::string("Sign"), std::string(5000, '\n')}) {
    const auto asked = asked_protection({{kRdmaSecurity, said}});
    ASSERT_FALSE(asked.ok());
    const std::string& why = asked.status().message();
    EXPECT_LT(why.size(), 150u);
    EXPECT_EQ(why.find_first_of("\n\x1b"), std::string::npos);
    EXPECT_NE(why.find("it may be none, identity, sign, encrypt"), std::string::npos) << why;
  }
  EXPECT_EQ(asked_protection({}).value(), Protection::kNone);
  EXPECT_EQ(asked_protection({{kRdmaSecurity, "sign"}}).value(), Protection::kSign);
}

TEST(Introductions, AnIdIsLookedUpAsItIs) {
  Introductions waiting;
  waiting.add(introduction("good"), 0);
  for (const std::string& id : {std::string(60000, 'g'), std::string("good\0", 5), std::string(), std::string("goo")}) {
    EXPECT_EQ(introduction_id({{"intro", id}}), id);
    EXPECT_FALSE(waiting.find(id, 1));
    EXPECT_FALSE(waiting.use_up(id));
  }
  EXPECT_TRUE(waiting.find("good", 1));
  EXPECT_TRUE(waiting.use_up("good"));
  EXPECT_FALSE(waiting.find("good", 1)) << "each is good once";
  EXPECT_FALSE(waiting.use_up("good"));
}

const provider::EndNames kClientEnds{"17", "18"};
const provider::EndNames kServerEnds{"18", "17"};

rpc::HelloFields hello_of_client(const std::string& scheme, Protection protection) {
  rpc::HelloFields hello;
  Introduced(introduction("waits"), rpc::Role::kClient, scheme, protection).add_proof(kClientEnds, hello);
  return hello;
}

Status refusal(const rpc::HelloFields& hello, const std::string& scheme, const provider::EndNames& ends) {
  Introductions waiting;
  waiting.add(introduction("waits"), 0);
  const auto taken = waiting.take(hello, scheme, ends, Protection::kSign, 1);
  EXPECT_FALSE(taken.ok());
  EXPECT_TRUE(waiting.find("waits", 1)) << "an id alone uses up nothing";
  return taken.status();
}

TEST(Introductions, AProofLetsItsClientInOnce) {
  for (const std::string scheme : {"shm", "verbs", "verbs+tcp"}) {
    const auto protection = scheme == "shm" ? Protection::kNone : Protection::kEncrypt;
    Introductions waiting;
    waiting.add(introduction("waits"), 0);
    const auto hello = hello_of_client(scheme, protection);
    const auto taken = waiting.take(hello, scheme, kServerEnds, Protection::kSign, 1);
    ASSERT_TRUE(taken.ok()) << taken.status().to_string();
    EXPECT_EQ(taken->protection(), protection);
    EXPECT_EQ(waiting.take(hello, scheme, kServerEnds, Protection::kSign, 1).status().code(),
              StatusCode::kUnauthenticated);
  }
}

TEST(Introductions, AProofIsOfOneQueuePairOneWayAndOneProtection) {
  const auto good = hello_of_client("verbs", Protection::kSign);
  EXPECT_EQ(refusal(good, "verbs", {"18", "666"}).code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal(good, "verbs", {"666", "17"}).code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal(good, "verbs+tcp", kServerEnds).code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal(good, "shm", kServerEnds).code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal({{"intro", "waits"}, {"rdma_security", "sign"}}, "verbs", kServerEnds).code(),
            StatusCode::kUnauthenticated);
  auto changed = good;
  changed["rdma_security"] = "encrypt";
  EXPECT_EQ(refusal(changed, "verbs", kServerEnds).code(), StatusCode::kUnauthenticated);
  rpc::HelloFields reflected{{"intro", "waits"}, {"rdma_security", "sign"}};
  Introduced(introduction("waits"), rpc::Role::kServer, "verbs", Protection::kSign).add_proof(kServerEnds, reflected);
  EXPECT_EQ(refusal(reflected, "verbs", kServerEnds).code(), StatusCode::kUnauthenticated);
  for (const auto less : {Protection::kNone, Protection::kIdentity})
    EXPECT_EQ(refusal(hello_of_client("verbs", less), "verbs", kServerEnds).code(), StatusCode::kFailedPrecondition);
}

TEST(Introductions, OneIsGoodForHalfAMinute) {
  Introductions waiting;
  waiting.add(introduction("one"), 0);
  waiting.add(introduction("two"), kSecond);
  EXPECT_TRUE(waiting.find("one", kHalfAMinute - 1));
  EXPECT_FALSE(waiting.find("one", kHalfAMinute));
  EXPECT_TRUE(waiting.find("two", kHalfAMinute));
}

TEST(Introductions, ThoseThatAreUsedUpTakeNoPlace) {
  Introductions waiting;
  waiting.add(introduction("patient"), 0);
  for (size_t i = 0; i < 2 * Introductions::kWaitingMax; ++i) {
    const std::string id = "hasty" + std::to_string(i);
    waiting.add(introduction(id), 1);
    ASSERT_TRUE(waiting.use_up(id));
  }
  EXPECT_TRUE(waiting.find("patient", 2));
}

TEST(Introductions, BeyondTheMostTheOldestGoes) {
  Introductions waiting;
  for (size_t i = 0; i <= Introductions::kWaitingMax; ++i) waiting.add(introduction(std::to_string(i)), 0);
  EXPECT_FALSE(waiting.find("0", 0));
  EXPECT_TRUE(waiting.find("1", 0));
  EXPECT_TRUE(waiting.find(std::to_string(Introductions::kWaitingMax), 0));
}

TEST(Introductions, OneThatComesAgainIsTheNewOne) {
  Introductions waiting;
  waiting.add(introduction("again"), 0);
  waiting.add(introduction("again"), kHalfAMinute - 1);
  EXPECT_TRUE(waiting.find("again", kHalfAMinute));
  EXPECT_TRUE(waiting.use_up("again"));
}

}  // namespace
}  // namespace rrpc::driver
