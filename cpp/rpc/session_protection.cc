// The keys of a protected connection, and from which message on it is one.
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "rpc/session.h"

namespace rrpc::rpc {

using provider::Protection;

// With its length, so that no two pairs of HELLOs make the same transcript.
void Session::note_hello(Bytes body) {
  const auto length = static_cast<uint32_t>(body.size());
  hellos_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  hellos_ += as_text(body);
}

void Session::protect(Protection mode, std::shared_ptr<const provider::CipherFactory> ciphers,
                      const provider::ExportedKey& secret, const endpoint::KeyLimits& limits) {
  RRPC_CHECK(protection_ == Protection::kNone && !hellos_.empty(), "a session is protected once, with its HELLOs");
  protection_ = mode;
  if (mode != Protection::kSign && mode != Protection::kEncrypt) return;
  RRPC_CHECK(ciphers != nullptr, "this protection needs ciphers");
  wanted_protection_ = std::make_unique<WantedProtection>(std::move(ciphers), secret, limits);
  if (!ready_) return;  // this end's HELLO has to go first
  if (Status status = start_protection(); !status.ok()) close(status);
}

Result<endpoint::DirectionCiphers> Session::ciphers_of(Role sender) const {
  const WantedProtection& wanted = *wanted_protection_;
  const std::string label = "rrpc " + std::string(provider::protection_name(protection_)) +
                            (sender == Role::kClient ? " client " : " server ");
  std::array<uint32_t, 2> epochs{endpoint_.epoch(), endpoint_.peer_epoch()};
  if (role_ == Role::kServer) std::swap(epochs[0], epochs[1]);
  const std::string transcript = std::string(as_text(std::as_bytes(std::span(epochs)))) + hellos_;
  const auto make = [&](const char* what) {
    return wanted.ciphers->make(wanted.secret, as_bytes(transcript), label + what);
  };
  endpoint::DirectionCiphers made;
  RRPC_ASSIGN_OR_RETURN(made.messages, make("messages"));
  for (auto& ranges : made.ranges) {
    RRPC_ASSIGN_OR_RETURN(ranges, make("ranges"));
  }
  return made;
}

// HELLO is the first message of each end, and no CREDIT can be owed for one message. So a receiver knows without a mark
// which messages have tags: all but the first.
Status Session::start_protection() {
  if (wanted_protection_ == nullptr) return {};
  const endpoint::Counters& traffic = endpoint_.traffic();
  if (traffic.messages_received != 1)
    return Status::protocol_error("a message came beside HELLO before the connection was protected");
  RRPC_CHECK(traffic.messages_sent <= 1, "nothing but HELLO goes before the connection is protected");
  const Role peer = role_ == Role::kClient ? Role::kServer : Role::kClient;
  RRPC_ASSIGN_OR_RETURN(endpoint::DirectionCiphers out, ciphers_of(role_));
  RRPC_ASSIGN_OR_RETURN(endpoint::DirectionCiphers in, ciphers_of(peer));
  endpoint_.protect(protection_, std::move(out), std::move(in), wanted_protection_->limits);
  wanted_protection_.reset();
  return {};
}

}  // namespace rrpc::rpc
