// Who is let in beside TLS, by a stranger's HELLO; and where a stranger's HELLO sends a client. The first byte picks
// the end, the next two what differs between what a proof was made for and what it is shown for. The rest is the HELLO.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "driver/devices.h"
#include "driver/introductions.h"
#include "driver/offers.h"
#include "rpc/messages.h"

namespace rrpc::driver {
namespace {

constexpr std::array<const char*, 4> kWays{"shm", "verbs", "verbs+tcp", "verbs"};

void expect(bool what) {
  if (!what) __builtin_trap();
}

// An error goes to the peer and to logs: one line, and not the peer's own megabyte.
void check_text(const std::string& text) {
  constexpr size_t kLongest = 400;
  expect(text.size() <= kLongest);
  expect(std::ranges::none_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }));
}

// A keyed sum in the place of HMAC: who has neither key nor message doesn't hit it by chance.
struct FakeTls final : provider::TlsContext {
  Result<std::unique_ptr<provider::TlsChannel>> open(const std::string&) override { return unavailable("a fake"); }
  provider::Authenticator authenticate(const provider::ExportedKey& key, Bytes message) const override {
    provider::Authenticator sum{};
    uint64_t state = 0xcbf29ce484222325;
    const auto take = [&state](std::byte b) { state = (state ^ static_cast<uint64_t>(b)) * 0x100000001b3; };
    std::ranges::for_each(key, take);
    std::ranges::for_each(message, take);
    for (std::byte& byte : sum) {
      take(std::byte{1});
      byte = static_cast<std::byte>(state >> 56);
    }
    return sum;
  }
  Status reload() override { return {}; }
  void note_refused(const std::string&) override {}
  Refusals refusals() const override { return {}; }
};

Introduction introduction(std::byte key) {
  static const auto tls = std::make_shared<FakeTls>();
  provider::ExportedKey filled{};
  filled.fill(key);
  return {.id = "waits", .key = filled, .tls = tls, .peer = {}, .introducer = {}};
}

// What a proof is made for, or shown for.
struct Facts {
  std::string way;
  Protection protection = Protection::kNone;
  std::string client_end;
  std::string server_end;
  std::byte key{1};

  bool operator==(const Facts&) const = default;
  Introduced as(rpc::Role role) const { return {introduction(key), role, way, protection}; }
  provider::EndNames ends(rpc::Role role) const {
    if (role == rpc::Role::kClient) return {client_end, server_end};
    return {server_end, client_end};
  }
};

// Facts from six bits, and what else may be another than the honest ones from four.
Facts facts_from(uint8_t bits, uint8_t differs) {
  return {.way = kWays[bits & 3],
          .protection = static_cast<Protection>((bits >> 2) & 3),
          .client_end = (differs & 1) != 0 ? "666" : "17",
          .server_end = (differs & 2) != 0 ? "666" : "18",
          .key = std::byte{static_cast<uint8_t>((differs & 4) != 0 ? 2 : 1)}};
}

// The stranger has the proof that the other end made for these facts, as a relay does. False: it has one of its own.
bool add_relayed_proof(rpc::HelloFields& hello, const Facts& made_for, rpc::Role of) {
  const bool none = !hello.contains("proof");
  rpc::HelloFields made;
  made_for.as(of).add_proof(made_for.ends(of), made);
  hello.merge(made);
  return none;
}

// Gives the facts for which the client was let in.
std::optional<Facts> meet_client(Protection least, const std::string& way, const rpc::HelloFields& hello) {
  Introductions waiting;
  waiting.add(introduction(std::byte{1}), 0);
  Facts honest = facts_from(0, 0);
  honest.way = way;
  const auto let_in = waiting.take(hello, way, honest.ends(rpc::Role::kServer), least, 1);
  check_text(let_in.status().message());
  expect(waiting.find("waits", 1).has_value() != let_in.ok());
  const auto asked = asked_protection(hello);
  const auto found = [&hello](const char* name) { return hello.contains(name) ? hello.at(name) : std::string(); };
  honest.protection = way == "shm" || !asked.ok() ? Protection::kNone : *asked;
  const bool enough = way == "shm" || (honest.protection != Protection::kNone && least != Protection::kNone &&
                                       honest.protection >= least);
  rpc::HelloFields best;
  honest.as(rpc::Role::kClient).add_proof(honest.ends(rpc::Role::kClient), best);
  expect(let_in.ok() == (enough && found("intro") == "waits" && found("proof") == best["proof"]));
  if (!let_in.ok()) return std::nullopt;
  expect(let_in->protection() == honest.protection);
  expect(!waiting.take(hello, way, honest.ends(rpc::Role::kServer), least, 1).ok());
  return honest;
}

bool meet_server(const Facts& facts, const rpc::HelloFields& hello) {
  const Status proved = facts.as(rpc::Role::kClient).check_proof(facts.ends(rpc::Role::kClient), hello);
  check_text(proved.message());
  rpc::HelloFields best;
  facts.as(rpc::Role::kServer).add_proof(facts.ends(rpc::Role::kServer), best);
  expect(proved.ok() == (hello.contains("proof") && hello.at("proof") == best["proof"]));
  return proved.ok();
}

void follow(const Address& dialled, rpc::HelloFields hello, bool same_host) {
  constexpr size_t kAddressesMax = 16;
  if (same_host) hello["host"] = host_identity();
  (void)offers_tcp(hello);
  for (const char* transport : {"shm", "verbs"}) {
    const Candidates found = candidates(transport, hello, dialled);
    check_text(found.why_none);
    expect(found.addresses.empty() != found.why_none.empty());
    expect(found.addresses.size() <= kAddressesMax);
    for (const Address& address : found.addresses) {
      check_text(address.to_string());
      expect(!dialled.is_verbs() || transport == std::string("shm") || address.scheme == dialled.scheme);
    }
  }
  const auto go_to = hello.find("go_to");
  if (go_to == hello.end()) return;
  const auto target = sent_on(dialled, go_to->second);
  check_text(target.status().message());
  if (!target.ok()) return;
  expect(target->scheme == dialled.scheme && target->secure == dialled.secure);
  expect(dialled.scheme == "shm" || host_of(target->without_options()) == host_of(dialled.without_options()));
}

void speak(uint8_t how, uint8_t bits, uint8_t differs, Bytes body) {
  auto hello = rpc::parse_hello(body);
  if (!hello.ok()) return;
  const Facts made_for = facts_from(bits >> 2, differs);
  const bool reflected = (differs & 8) != 0;
  const auto least = static_cast<Protection>((differs >> 4) & 3);
  switch (how % 5) {
    case 0:  // the server meets what a stranger made up
      (void)meet_client(least, kWays[bits & 3], *hello);
      return;
    case 1: {  // what a relay has of a client: good for what it was made for alone
      const bool relayed = add_relayed_proof(*hello, made_for, reflected ? rpc::Role::kServer : rpc::Role::kClient);
      const auto let_in = meet_client(least, kWays[bits & 3], *hello);
      return expect(!relayed || !let_in || (*let_in == made_for && !reflected));
    }
    case 2:
      (void)meet_server(facts_from(bits >> 2, 0), *hello);
      return;
    case 3: {
      const bool relayed = add_relayed_proof(*hello, made_for, reflected ? rpc::Role::kClient : rpc::Role::kServer);
      const Facts facts = facts_from((bits >> 2) ^ (bits & 3), 0);
      return expect(!relayed || meet_server(facts, *hello) == (facts == made_for && !reflected));
    }
    default: {
      static const std::array<Address, 4> addresses{Address{"rrpc", "10.9.0.1:7471", (bits & 4) != 0},
                                                    {"verbs", "[fd00::1]:7471?device=rxe0", true},
                                                    {"verbs+tcp", "10.9.0.1:7471", true},
                                                    {"shm", "/run/rrpc.sock"}};
      return follow(addresses[bits & 3], std::move(*hello), (bits & 8) != 0);
    }
  }
}

}  // namespace
}  // namespace rrpc::driver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  constexpr size_t kChoices = 3;
  if (length_bytes < kChoices) return 0;
  // In memory of its own, so that a byte past the end is seen.
  const std::string body(reinterpret_cast<const char*>(data) + kChoices, length_bytes - kChoices);
  rrpc::driver::speak(data[0], data[1], data[2], rrpc::as_bytes(body));
  return 0;
}
