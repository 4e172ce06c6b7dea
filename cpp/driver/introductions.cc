#include "driver/introductions.h"

#include <string_view>
#include <utility>

#include "base/text.h"
#include "driver/plugin.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kLifetime = 30 * kSecond;
constexpr char kIdLabel[] = "EXPORTER-rrpc-introduction-id";
constexpr char kKeyLabel[] = "EXPORTER-rrpc-introduction-key";
constexpr char kSecretOf[] = "protection";  // no proof begins so
constexpr size_t kIdBytes = 16;
constexpr char kId[] = "intro";  // fields of HELLO
constexpr char kProof[] = "proof";

// In the same time whatever differs.
bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

Status refused(std::string why) { return {StatusCode::kUnauthenticated, std::move(why)}; }

Status not_introduced() {
  return refused(
      "this way to the server is for clients that TLS has let in: connect to its rrpcs:// address, or with TLS to its "
      "verbs:// address");
}

}  // namespace

std::optional<Introduction> introduction_by(const provider::QueuePair& queue_pair,
                                            std::shared_ptr<provider::TlsContext> tls) {
  const auto id = queue_pair.export_key(kIdLabel);
  const auto key = queue_pair.export_key(kKeyLabel);
  if (!id || !key || tls == nullptr) return std::nullopt;
  return Introduction{hexadecimal(Bytes(*id).first(kIdBytes)), *key, std::move(tls), queue_pair.peer_identity(), {}};
}

std::string introduction_id(const rpc::HelloFields& hello) {
  const auto it = hello.find(kId);
  return it == hello.end() ? std::string() : it->second;
}

Result<Protection> asked_protection(const rpc::HelloFields& hello) {
  const auto it = hello.find(kRdmaSecurity);
  return it == hello.end() ? Protection::kNone : parse_protection(it->second, "the peer's rdma_security");
}

std::string Introduced::proof(rpc::Role of, const provider::EndNames& ends) const {
  const bool client = role_ == rpc::Role::kClient;
  std::string facts = of == rpc::Role::kClient ? "client" : "server";
  for (const std::string& fact : {scheme_, client ? ends.own : ends.peer, client ? ends.peer : ends.own,
                                  std::string(protection_name(protection_))})
    facts.append("\n").append(fact);
  return hexadecimal(introduction_.tls->authenticate(introduction_.key, as_bytes(facts)));
}

void Introduced::add_proof(const provider::EndNames& ends, rpc::HelloFields& hello) const {
  if (role_ == rpc::Role::kClient) {
    hello[kId] = introduction_.id;
    if (protection_ != Protection::kNone) hello[kRdmaSecurity] = protection_name(protection_);
  }
  hello[kProof] = proof(role_, ends);
}

Status Introduced::check_proof(const provider::EndNames& ends, const rpc::HelloFields& hello) const {
  const bool client = role_ == rpc::Role::kClient;
  const auto given = hello.find(kProof);
  if (given != hello.end() &&
      equal_secrets(given->second, proof(client ? rpc::Role::kServer : rpc::Role::kClient, ends)))
    return {};
  return refused(std::string("who answers over ") + scheme_ + " has no proof of being the " +
                 (client ? "server" : "client") + " that TLS has introduced");
}

Status Introduced::protect(rpc::Session& session) const {
  if (protection_ != Protection::kSign && protection_ != Protection::kEncrypt) return {};
  RRPC_ASSIGN_OR_RETURN(auto ciphers, open_ciphers());
  session.protect(protection_, std::move(ciphers),
                  introduction_.tls->authenticate(introduction_.key, as_bytes(kSecretOf)));
  return {};
}

Result<Introduced> Introductions::take(const rpc::HelloFields& hello, const std::string& scheme,
                                       const provider::EndNames& ends, Protection least, TimeNs now) {
  const std::string id = introduction_id(hello);
  auto introduction = find(id, now);
  if (!introduction) return not_introduced();
  Protection protection = Protection::kNone;
  if (scheme != "shm") {
    RRPC_ASSIGN_OR_RETURN(protection, asked_protection(hello));
    if (agreed(protection, least) != protection || protection == Protection::kNone)
      return failed_precondition("the client wants rdma_security '" + std::string(protection_name(protection)) +
                                 "', and this server '" + std::string(protection_name(least)) + "' at least");
  }
  Introduced introduced(std::move(*introduction), rpc::Role::kServer, scheme, protection);
  // An id alone, which goes in clear over RDMA, uses up nothing.
  RRPC_RETURN_IF_ERROR(introduced.check_proof(ends, hello));
  if (!use_up(id)) return not_introduced();
  return introduced;
}

void Introductions::drop(ByAge::iterator one) {
  by_id_.erase(one->second.id);
  by_age_.erase(one);
}

void Introductions::drop_old(TimeNs now) {
  while (!by_age_.empty() && (by_age_.size() > kWaitingMax || by_age_.front().first + kLifetime <= now))
    drop(by_age_.begin());
}

void Introductions::add(Introduction introduction, TimeNs now) {
  std::lock_guard lock(mutex_);
  if (const auto earlier = by_id_.find(introduction.id); earlier != by_id_.end()) drop(earlier->second);
  const auto added = by_age_.emplace(by_age_.end(), now, std::move(introduction));
  by_id_.emplace(added->second.id, added);
  drop_old(now);
}

std::optional<Introduction> Introductions::find(const std::string& id, TimeNs now) {
  std::lock_guard lock(mutex_);
  drop_old(now);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return std::nullopt;
  return it->second->second;
}

bool Introductions::use_up(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return false;
  drop(it->second);
  return true;
}

}  // namespace rrpc::driver
