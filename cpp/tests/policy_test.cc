#include "driver/policy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver/authorization.h"
#include "driver/user_database.h"

namespace rrpc::driver {
namespace {

using provider::PeerIdentity;

PeerIdentity process(uid_t uid, gid_t gid = 65533) {
  PeerIdentity identity;
  identity.process = provider::ProcessIdentity{1, uid, gid};
  return identity;
}

PeerIdentity certificate(std::vector<std::string> dns_names, std::vector<std::string> uris = {}) {
  PeerIdentity identity;
  identity.certificate = provider::CertificateIdentity{
      .subject = "CN=worker", .issuer = {}, .serial = {}, .dns_names = std::move(dns_names), .uris = std::move(uris)};
  return identity;
}

Principal principal(Principal::Kind kind, uint32_t id = 0, std::string name = "") {
  return {kind, id, std::move(name)};
}

bool permits(const Principal& allowed, const PeerIdentity& caller, std::string_view token = "") {
  Policy policy(true);
  policy.restrict_method("S.m", {allowed});
  return policy.decide("S.m", caller, token) == Verdict::kAllowed;
}

TEST(PolicyTest, ProcessesAreKnownByUserAndGroup) {
  const PeerIdentity nobody;
  EXPECT_TRUE(permits(principal(Principal::Kind::kAny), nobody));
  EXPECT_FALSE(permits(principal(Principal::Kind::kAuthenticated), nobody));
  EXPECT_TRUE(permits(principal(Principal::Kind::kAuthenticated), process(7)));
  EXPECT_TRUE(permits(principal(Principal::Kind::kUid, 7), process(7)));
  EXPECT_FALSE(permits(principal(Principal::Kind::kUid, 7), process(8)));
  EXPECT_FALSE(permits(principal(Principal::Kind::kUid, 0), nobody));
  EXPECT_TRUE(permits(principal(Principal::Kind::kGid, 70), process(7, 70)));
  EXPECT_FALSE(permits(principal(Principal::Kind::kGid, 71), process(7, 70)));
  EXPECT_TRUE(permits(principal(Principal::Kind::kSameUser), process(geteuid())));
  EXPECT_FALSE(permits(principal(Principal::Kind::kSameUser), process(geteuid() + 1)));
  EXPECT_FALSE(permits(principal(Principal::Kind::kSameUser), nobody));
}

TEST(PolicyTest, TheDatabasesGroupsCount) {
  // root's primary group is 0 wherever there is a root, whatever group the process has.
  wait_for_user(0);
  wait_for_user(4'000'000'000);
  EXPECT_TRUE(permits(principal(Principal::Kind::kGid, 0), process(0, 65533)));
  EXPECT_FALSE(permits(principal(Principal::Kind::kGid, 0), process(4'000'000'000, 65533)));
}

TEST(PolicyTest, CertificatesAreKnownByTheirNames) {
  const auto dns = [](std::string name) { return principal(Principal::Kind::kDns, 0, std::move(name)); };
  const auto uri = [](std::string name) { return principal(Principal::Kind::kUri, 0, std::move(name)); };
  const PeerIdentity worker = certificate({"other", "Worker.example.org"}, {"spiffe://example.org/ml/worker"});
  EXPECT_TRUE(permits(dns("worker.EXAMPLE.org"), worker));
  EXPECT_TRUE(permits(dns("*.example.org"), worker));
  EXPECT_FALSE(permits(dns("*.org"), worker)) << "the wildcard stands for one label";
  EXPECT_FALSE(permits(dns("*.example.org"), certificate({"a.b.example.org"})));
  EXPECT_FALSE(permits(dns("*.example.org"), certificate({"example.org"})));
  EXPECT_FALSE(permits(dns("*.example.org"), certificate({".example.org"})));
  EXPECT_FALSE(permits(dns("*.example.org"), certificate({"evil-example.org"})));
  EXPECT_FALSE(permits(dns("worker.example.org"), certificate({"*.example.org"})));
  EXPECT_TRUE(permits(uri("spiffe://example.org/ml/worker"), worker));
  EXPECT_TRUE(permits(uri("spiffe://example.org/*"), worker));
  EXPECT_FALSE(permits(uri("spiffe://example.org/ml"), worker));
  EXPECT_FALSE(permits(uri("spiffe://example.org/ml/worker/*"), worker));
  EXPECT_FALSE(permits(uri("spiffe://example.org/m/*"), worker));
  EXPECT_FALSE(permits(dns("CN=worker"), worker)) << "the subject proves nothing";
  EXPECT_TRUE(permits(principal(Principal::Kind::kAuthenticated), worker));
  EXPECT_FALSE(permits(principal(Principal::Kind::kUid, 0), worker));
}

TEST(PolicyTest, ATokenDecidesOnceItIsKnown) {
  Policy policy(true);
  policy.restrict_method("S.m", {principal(Principal::Kind::kToken, 0, "batch")});
  EXPECT_EQ(policy.decide("S.m", process(7)), Verdict::kByToken);
  EXPECT_EQ(policy.decide("S.m", process(7), "batch"), Verdict::kAllowed);
  EXPECT_EQ(policy.decide("S.m", process(7), "other"), Verdict::kRefused);
  EXPECT_EQ(policy.decide("S.m", process(7), ""), Verdict::kRefused);
  EXPECT_TRUE(permits(principal(Principal::Kind::kAuthenticated), {}, "batch"));
  Policy without(false);
  without.restrict_method("S.m", {principal(Principal::Kind::kToken, 0, "batch")});
  EXPECT_EQ(without.decide("S.m", process(7)), Verdict::kRefused);
  EXPECT_EQ(without.decide("S.m", process(7), "batch"), Verdict::kRefused);
}

TEST(PolicyTest, TheMostSpecificRuleDecides) {
  const Principals mine = {principal(Principal::Kind::kUid, 7)};
  const Principals others = {principal(Principal::Kind::kUid, 8)};
  Policy policy(false);
  EXPECT_EQ(policy.decide("Any.thing", process(7)), Verdict::kAllowed) << "without rules";
  policy.deny_by_default();
  EXPECT_EQ(policy.decide("Any.thing", process(7)), Verdict::kRefused);
  EXPECT_FALSE(policy.lets_in(process(7)));
  policy.add_rule("*", others);
  policy.add_rule("lab.*", mine);
  policy.add_rule("lab.Nearest", others);
  policy.add_rule("lab.Nearest.search", mine);
  policy.add_rule("lab.Nearest.s*", {});
  const auto may = [&](std::string_view method) { return policy.decide(method, process(7)) == Verdict::kAllowed; };
  EXPECT_FALSE(may("Any.thing"));
  EXPECT_FALSE(may("nothing"));
  EXPECT_TRUE(may("lab.Other.thing"));
  EXPECT_FALSE(may("lab.Nearest.add"));
  EXPECT_TRUE(may("lab.Nearest.search"));
  EXPECT_FALSE(may("lab.Nearest.stop")) << "a service by its name comes before a pattern";
  EXPECT_TRUE(policy.lets_in(process(7)));
  EXPECT_FALSE(policy.lets_in(process(9)));
  policy.restrict_method("lab.Nearest.search", others);
  EXPECT_FALSE(may("lab.Nearest.search")) << "both must permit it";
}

TEST(PolicyTest, Globs) {
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("a*b?d", "axxbcd"));
  EXPECT_TRUE(matches_glob("*ab", "aab"));
  EXPECT_FALSE(matches_glob("a?", "a"));
  EXPECT_FALSE(matches_glob("a", "ab"));
  EXPECT_FALSE(matches_glob("", "a"));
}

TEST(AuthorizationTest, AnAnswerIsRememberedUntilThePolicyChanges) {
  Authorization authorization;
  Verdicts known;
  size_t asked = 0;
  const PeerIdentity caller = process(7);
  const auto identity = [&]() -> const PeerIdentity& {
    ++asked;
    return caller;
  };
  EXPECT_TRUE(authorization.check(known, "S.m", identity).ok());
  EXPECT_EQ(asked, 0U) << "without a policy nobody is asked";
  const auto set = [&](Principals allowed) {
    auto policy = std::make_shared<Policy>(false);
    policy->restrict_method("S.m", std::move(allowed));
    authorization.set(std::move(policy));
  };
  set({});
  for (int i = 0; i < 3; ++i) {
    const Status refused = authorization.check(known, "S.m", identity);
    EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied);
    EXPECT_TRUE(refused.message().starts_with("S.m() may not be called by ")) << refused.message();
  }
  EXPECT_EQ(asked, 1U);
  EXPECT_EQ(authorization.take_denials().size(), 1U);
  set({principal(Principal::Kind::kUid, 7)});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(authorization.check(known, "S.m", identity).ok());
  EXPECT_EQ(asked, 2U);
  set({});
  EXPECT_FALSE(authorization.check(known, "S.m", identity).ok());
  authorization.set(nullptr);
  EXPECT_TRUE(authorization.check(known, "S.m", identity).ok());
}

TEST(AuthorizationTest, AStrangersMethodsTakeBoundedMemory) {
  Authorization authorization;
  auto policy = std::make_shared<Policy>(false);
  policy->deny_by_default();
  authorization.set(std::move(policy));
  Verdicts known;
  const PeerIdentity caller = process(7);
  for (int i = 0; i < 2000; ++i) {
    const Status refused = authorization.check(known, std::string(1000, 'x') + std::to_string(i) + "\n",
                                               [&]() -> const PeerIdentity& { return caller; });
    EXPECT_LT(refused.message().size(), 200U);
    EXPECT_FALSE(
        authorization.check(known, "S.m" + std::to_string(i) + "\n", [&]() -> const PeerIdentity& { return caller; })
            .ok());
  }
  EXPECT_LE(known.size(), 256U);
  EXPECT_LE(authorization.take_denials().size(), 64U);
}

}  // namespace
}  // namespace rrpc::driver
