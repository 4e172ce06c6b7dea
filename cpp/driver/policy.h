// Who may call which method: the rules of a server, compiled, and the identities that they are held against.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "provider/identity.h"

namespace rrpc::driver {

// One kind of callers. rrpc/_interface/principals.py reads their text; names of users and groups are numbers here.
struct Principal {
  enum class Kind : uint8_t {
    kAny,            // everybody, anonymous callers too
    kAuthenticated,  // who has proved anything: a process of this host, a certificate, a token
    kSameUser,       // processes of this process's user
    kUid,
    kGid,    // the process's own group, or one that the name database has its user in
    kDns,    // a name of the certificate; "*." at the front stands for one label
    kUri,    // a URI of the certificate; "/*" at the end stands for all below it
    kToken,  // the subject of a token that an interceptor has checked
  };
  Kind kind = Kind::kAny;
  uint32_t id = 0;
  std::string name;
};
using Principals = std::vector<Principal>;

enum class Verdict : uint8_t {
  kAllowed,
  kRefused,
  kByToken,  // the call's token decides, which only an interceptor knows
};

// Whether one of them matches the caller, tokens apart.
bool any_proves(const Principals& allowed, const provider::PeerIdentity& caller);
// Whether what they say of a process may depend on the database of users.
bool name_groups(const Principals& allowed);

// Immutable once it is made.
class Policy {
 public:
  struct Rule {
    std::string pattern;  // "Service.method", "Service", or either with * and ?
    Principals allowed;
  };

  // `tokens`: the server has an interceptor that checks them, and asks again with their subject.
  explicit Policy(bool tokens) : tokens_(tokens) {}
  // What the code says of one method; a method of which it says nothing may be called by anybody.
  void restrict_method(std::string method, Principals allowed) {
    groups_ = groups_ || name_groups(allowed);
    of_methods_.insert_or_assign(std::move(method), std::move(allowed));
  }
  // From the first of them on, a method that no rule matches may be called by nobody.
  void deny_by_default() { denies_others_ = true; }
  void add_rule(std::string pattern, Principals allowed);

  // Both the code and the rules must permit it. Without a `token` it may be one that a token decides.
  Verdict decide(std::string_view method, const provider::PeerIdentity& caller,
                 std::optional<std::string_view> token = {}) const;
  // Whether what is decided of a process may depend on the database of users.
  bool asks_for_groups() const { return groups_; }
  // False: there is no method that the caller may call, whatever its name.
  bool lets_in(const provider::PeerIdentity& caller) const;

 private:
  struct Ranked {
    int rank = 0;  // the higher, the more a pattern says
    Rule rule;
  };

  Verdict match(const Principals& allowed, const provider::PeerIdentity& caller,
                std::optional<std::string_view> token) const;
  const Rule* rule_of(std::string_view method) const;

  const bool tokens_;
  bool denies_others_ = false;
  bool groups_ = false;
  std::map<std::string, Principals, std::less<>> of_methods_;
  std::vector<Ranked> rules_;  // the most specific first
};

// "user alice (uid 1000)", "the certificate of worker.example.org", "an anonymous caller": for errors and logs.
std::string describe(const provider::PeerIdentity& caller);
// Whether * (any number of characters) and ? (one) in the pattern can stand for what the text has there.
bool matches_glob(std::string_view pattern, std::string_view text);

}  // namespace rrpc::driver
