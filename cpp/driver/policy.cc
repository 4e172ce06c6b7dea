#include "driver/policy.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "driver/user_database.h"

namespace rrpc::driver {
namespace {

using provider::PeerIdentity;

constexpr int kExactRank = 1 << 20;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other, [](char a, char b) { return lower(a) == lower(b); });
}

bool matches_dns(std::string_view principal, std::string_view name) {
  if (!principal.starts_with("*.")) return same_name(principal, name);
  const size_t dot = name.find('.');
  return dot != std::string_view::npos && dot > 0 && same_name(principal.substr(1), name.substr(dot));
}

bool matches_uri(std::string_view principal, std::string_view uri) {
  if (!principal.ends_with("/*")) return principal == uri;
  const std::string_view above = principal.substr(0, principal.size() - 1);
  return uri.size() > above.size() && uri.starts_with(above);
}

template <typename Names, typename Matches>
bool any_of(const std::optional<provider::CertificateIdentity>& certificate, Names names, const Matches& matches) {
  return certificate && std::ranges::any_of((*certificate).*names, matches);
}

bool proves(const Principal& principal, const PeerIdentity& caller) {
  const auto& process = caller.process;
  switch (principal.kind) {
    case Principal::Kind::kAny:
      return true;
    case Principal::Kind::kAuthenticated:
      return process.has_value() || caller.certificate.has_value();
    case Principal::Kind::kSameUser:
      return process && process->uid == geteuid();
    case Principal::Kind::kUid:
      return process && process->uid == principal.id;
    case Principal::Kind::kGid:
      return process && (process->gid == principal.id || user_in_group(process->uid, principal.id));
    case Principal::Kind::kDns:
      return any_of(caller.certificate, &provider::CertificateIdentity::dns_names,
                    [&](const std::string& name) { return matches_dns(principal.name, name); });
    case Principal::Kind::kUri:
      return any_of(caller.certificate, &provider::CertificateIdentity::uris,
                    [&](const std::string& uri) { return matches_uri(principal.name, uri); });
    case Principal::Kind::kToken:
      return false;
  }
  return false;
}

bool proved_by_token(const Principal& principal, std::string_view subject) {
  if (principal.kind == Principal::Kind::kAuthenticated) return !subject.empty();
  return principal.kind == Principal::Kind::kToken && !subject.empty() && principal.name == subject;
}

// Exact names before patterns, methods before services, then those with more characters of their own.
int rank_of(std::string_view pattern) {
  const auto own = std::ranges::count_if(pattern, [](char c) { return c != '*' && c != '?'; });
  const bool exact = static_cast<size_t>(own) == pattern.size();
  return static_cast<int>(own) + (exact ? kExactRank : 0);
}

std::string_view service_of(std::string_view method) {
  const size_t dot = method.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : method.substr(0, dot);
}

}  // namespace

bool any_proves(const Principals& allowed, const PeerIdentity& caller) {
  return std::ranges::any_of(allowed, [&](const Principal& principal) { return proves(principal, caller); });
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool name_groups(const Principals& allowed) {
  return std::ranges::find(allowed, Principal::Kind::kGid, &Principal::kind) != allowed.end();
}

void Policy::add_rule(std::string pattern, Principals allowed) {
  groups_ = groups_ || name_groups(allowed);
  const int rank = rank_of(pattern);
  const auto place = std::ranges::find_if(rules_, [rank](const Ranked& other) { return other.rank < rank; });
  rules_.insert(place, {rank, {std::move(pattern), std::move(allowed)}});
}

const Policy::Rule* Policy::rule_of(std::string_view method) const {
  const std::string_view service = service_of(method);
  for (const Ranked& ranked : rules_) {
    const std::string& pattern = ranked.rule.pattern;
    if (matches_glob(pattern, method) || (!service.empty() && matches_glob(pattern, service))) return &ranked.rule;
  }
  return nullptr;
}

Verdict Policy::match(const Principals& allowed, const PeerIdentity& caller,
                      std::optional<std::string_view> token) const {
  if (any_proves(allowed, caller)) return Verdict::kAllowed;
  if (!tokens_) return Verdict::kRefused;
  if (token) {
    const bool proved = std::ranges::any_of(allowed, [&](const auto& one) { return proved_by_token(one, *token); });
    return proved ? Verdict::kAllowed : Verdict::kRefused;
  }
  const bool may = std::ranges::any_of(allowed, [](const Principal& principal) {
    return principal.kind == Principal::Kind::kToken || principal.kind == Principal::Kind::kAuthenticated;
  });
  return may ? Verdict::kByToken : Verdict::kRefused;
}

Verdict Policy::decide(std::string_view method, const PeerIdentity& caller,
                       std::optional<std::string_view> token) const {
  Verdict verdict = Verdict::kAllowed;
  if (denies_others_) {
    const Rule* const rule = rule_of(method);
    verdict = rule == nullptr ? Verdict::kRefused : match(rule->allowed, caller, token);
  }
  if (verdict == Verdict::kRefused) return verdict;
  const auto own = of_methods_.find(method);
  if (own == of_methods_.end()) return verdict;
  const Verdict by_code = match(own->second, caller, token);
  return by_code == Verdict::kAllowed ? verdict : by_code;
}

bool Policy::lets_in(const PeerIdentity& caller) const {
  return !denies_others_ || std::ranges::any_of(rules_, [&](const Ranked& ranked) {
    return match(ranked.rule.allowed, caller, {}) != Verdict::kRefused;
  });
}

std::string describe(const PeerIdentity& caller) {
  if (caller.certificate) {
    const auto& certificate = *caller.certificate;
    const auto& names = certificate.dns_names.empty() ? certificate.uris : certificate.dns_names;
    return "the certificate of " + (names.empty() ? certificate.subject : names.front());
  }
  if (!caller.process) return "an anonymous caller (nothing proves who calls over this transport)";
  const std::string name = user_name(caller.process->uid);
  const std::string uid = "uid " + std::to_string(caller.process->uid);
  return name.empty() ? uid : "user " + name + " (" + uid + ")";
}

}  // namespace rrpc::driver
