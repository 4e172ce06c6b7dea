// The database of users and groups, which may take its time: who waits for it, and who doesn't.
#include "driver/user_database.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "driver/authorization.h"
#include "driver_pair.h"

namespace rrpc::driver {
namespace {

using testing::connect_to;
using testing::eventually;
using testing::TestCall;

// Answers about a user once it is let go, and about everybody at its end.
class SlowDatabase {
 public:
  SlowDatabase() {
    set_user_database([state = state_](uid_t uid) { return state->answer(uid); });
  }
  ~SlowDatabase() {
    state_->change([](State& state) { state.all = true; });
    EXPECT_TRUE(eventually([this] { return state_->answered == state_->asked; }));
    set_user_database({});
  }
  void let_go(uid_t uid) {
    state_->change([uid](State& state) { state.let_go.insert(uid); });
  }
  void hold_back() {
    state_->change([](State& state) { state.let_go.clear(); });
  }
  void put(uid_t uid, UserEntry entry) {
    state_->change([&](State& state) { state.entries[uid] = std::move(entry); });
  }
  size_t asked() const { return state_->asked; }

 private:
  struct State {
    UserEntry answer(uid_t uid) {
      ++asked;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return all || let_go.contains(uid); });
      ++answered;
      return entries[uid];
    }
    void change(const std::function<void(State&)>& how) {
      std::lock_guard lock(mutex);
      how(*this);
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool all = false;
    std::set<uid_t> let_go;
    std::map<uid_t, UserEntry> entries;
    std::atomic<size_t> asked{0};
    std::atomic<size_t> answered{0};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(UserDatabase, NobodyWaitsForIt) {
  SlowDatabase database;
  database.put(107, {"alice", {70, 71}});
  std::atomic<int> told{0};
  EXPECT_EQ(ask_about(107, [&] { ++told; }), Knowledge::kNone);
  EXPECT_EQ(ask_about(107, [&] { ++told; }), Knowledge::kNone);
  EXPECT_EQ(user_name(107), "");
  EXPECT_FALSE(user_in_group(107, 70));
  database.let_go(108);
  EXPECT_EQ(ask_about(108, [&] { ++told; }), Knowledge::kNone);
  EXPECT_TRUE(eventually([&] { return told == 1; })) << "one user doesn't hold up another";
  EXPECT_EQ(ask_about(108), Knowledge::kFresh) << "that there is no such user is an answer";
  database.let_go(107);
  EXPECT_TRUE(eventually([&] { return told == 3; }));
  EXPECT_EQ(ask_about(107), Knowledge::kFresh);
  EXPECT_EQ(user_name(107), "alice");
  EXPECT_TRUE(user_in_group(107, 71));
  EXPECT_FALSE(user_in_group(107, 72));
  EXPECT_EQ(database.asked(), 2u) << "each is asked about once";
}

TEST(UserDatabase, AThreadThatMayWaitGetsTheAnswer) {
  SlowDatabase database;
  database.put(207, {"alice", {}});
  database.let_go(207);
  wait_for_user(207);
  EXPECT_EQ(user_name(207), "alice");
  wait_for_user(207);
  EXPECT_EQ(database.asked(), 1u);
}

TEST(UserDatabase, AskedAnewItHasBoundedPatience) {
  SlowDatabase database;
  for (const uid_t uid : {307u, 308u}) database.put(uid, {"before", {70}});
  for (const uid_t uid : {307u, 308u}) database.let_go(uid);
  for (const uid_t uid : {307u, 308u}) wait_for_user(uid);
  for (const uid_t uid : {307u, 308u}) database.put(uid, {"after", {}});
  ask_anew(testing::patience(20 * kSecond));
  EXPECT_EQ(user_name(307), "after");
  EXPECT_FALSE(user_in_group(308, 70));
  database.hold_back();
  ask_anew(10 * kMillisecond);
  EXPECT_EQ(user_name(307), "after");
  EXPECT_EQ(ask_about(307), Knowledge::kOld);
}

TEST(UserDatabase, ManyUsersAreBounded) {
  constexpr uid_t kFirst = 10'000;
  SlowDatabase database;
  const auto told = std::make_shared<std::atomic<int>>(0);
  for (uid_t uid = kFirst; uid < kFirst + 3000; ++uid) EXPECT_EQ(ask_about(uid, [told] { ++*told; }), Knowledge::kNone);
  EXPECT_EQ(*told, 0);
  EXPECT_LE(database.asked(), 4u) << "threads";
  for (uid_t uid = kFirst; uid < kFirst + 3000; ++uid) database.let_go(uid);
  EXPECT_TRUE(eventually([&] { return *told == 1024; }));
}

Principal group(uint32_t gid) { return {Principal::Kind::kGid, gid, {}}; }

std::shared_ptr<Policy> rule_for(uint32_t gid) {
  auto policy = std::make_shared<Policy>(false);
  policy->deny_by_default();
  policy->add_rule("*", {group(gid)});
  return policy;
}

constexpr uint32_t kSome = 4'000'000;  // a group that this process isn't in by itself

// What a server whose rule is for the group says of one user's calls.
class RuleForSome {
 public:
  explicit RuleForSome(uint32_t uid) {
    caller_.process = provider::ProcessIdentity{1, uid, uid};
    set();
  }
  void set() { authorization_.set(rule_for(kSome)); }
  Status check() {
    return authorization_.check(known_, "S.m", [this] { return caller_; });
  }
  size_t remembered() const { return known_.size(); }

 private:
  Authorization authorization_;
  Verdicts known_;
  provider::PeerIdentity caller_;
};

TEST(UserDatabase, WhatIsntKnownYetIsRefusedAsUnavailable) {
  SlowDatabase database;
  RuleForSome rule(507);
  EXPECT_EQ(rule.check().code(), StatusCode::kUnavailable);
  EXPECT_EQ(rule.remembered(), 0u) << "that isn't remembered";
  database.put(507, {"alice", {kSome}});
  database.let_go(507);
  EXPECT_TRUE(eventually([&] { return rule.check().ok(); }));
}

TEST(UserDatabase, NewRulesGoByNewAnswers) {
  SlowDatabase database;
  database.put(607, {"alice", {kSome}});
  database.let_go(607);
  wait_for_user(607);
  RuleForSome rule(607);
  EXPECT_TRUE(rule.check().ok());
  database.put(607, {"alice", {}});
  EXPECT_TRUE(rule.check().ok());
  rule.set();
  EXPECT_EQ(rule.check().code(), StatusCode::kPermissionDenied);
}

// With a rule that names users, over shm: by the transport's proof.
class AtAServer : public ::testing::Test {
 protected:
  static Options options(std::optional<Principals> clients) {
    Options made;
    made.clients = std::move(clients);
    return made;
  }
  SlowDatabase database_;  // before the server, whose clients it may hold
  const uid_t me_ = geteuid();
};

TEST_F(AtAServer, OnlyTheClientWaitsThatIsAskedAbout) {
  testing::TestServer server("shm");
  auto policy = std::make_shared<Policy>(false);
  policy->restrict_method("none", {group(kSome)});
  server.server().set_policy(std::move(policy));
  const auto over_tcp = server.server().listen("tcp://127.0.0.1:0");
  ASSERT_TRUE(over_tcp.ok());
  std::atomic<bool> connected{false};
  std::thread waiting([&] {
    const auto client = connect_to(server.address());
    ASSERT_NE(client, nullptr);
    connected = true;
    EXPECT_EQ(TestCall(*client, "echo", "here").wait().code(), StatusCode::kOk);
  });
  EXPECT_TRUE(eventually([&] { return database_.asked() == 1; }));
  const auto other = connect_to(*over_tcp);
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(TestCall(*other, "echo", "there").wait().code(), StatusCode::kOk);
  EXPECT_FALSE(connected);
  database_.let_go(me_);
  waiting.join();
  EXPECT_TRUE(connected);
}

TEST_F(AtAServer, AClientOfNoSuchGroupIsRefusedWhenItConnects) {
  database_.let_go(me_);
  database_.put(me_, {"mallory", {1}});
  testing::TestServer server("shm", 1, options(Principals{group(kSome)}));
  const auto refused = Client::connect(server.address(), {}, testing::patiently_ms(10'000));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
  const std::string uid = std::to_string(me_);
  EXPECT_EQ(refused.status().message(), "connecting to " + server.address() +
                                            ": allow_clients: the server takes no connection of user mallory (uid " +
                                            uid + ")");
  EXPECT_EQ(server.server().authorization().take_denials().size(), 1u);
  database_.put(me_, {"alice", {kSome}});
  ask_anew(testing::patience(20 * kSecond));
  const auto client = connect_to(server.address());
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(TestCall(*client, "echo", "x").wait().code(), StatusCode::kOk);
}

TEST_F(AtAServer, NobodyAnonymousConnects) {
  testing::TestServer server("tcp", 1, options(Principals{{Principal::Kind::kAuthenticated, 0, {}}}));
  const auto refused = Client::connect(server.address(), {}, testing::patiently_ms(10'000));
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
}

TEST_F(AtAServer, ADatabaseThatSaysNothingEndsTheConnection) {
  Options short_of_time = options(Principals{group(kSome)});
  short_of_time.handshake_timeout = 50 * kMillisecond;
  testing::TestServer server("shm", 1, short_of_time);
  const auto refused = Client::connect(server.address(), {}, testing::patiently_ms(10'000));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("database of users and groups doesn't say who the client is"),
            std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace rrpc::driver
