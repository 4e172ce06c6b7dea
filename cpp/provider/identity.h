// Who the peer of a queue pair is, as its transport has proved it: never what the peer says of itself.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace rrpc::provider {

// A process of this host, as the kernel knows it (SO_PEERCRED) at the time when it connected.
struct ProcessIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// A certificate whose chain was verified, and whose key the peer has shown that it holds. The names are those of its
// subjectAltName; RFC 6125 gives the subject's common name no say any more.
struct CertificateIdentity {
  std::string subject;  // RFC 2253: "CN=worker-3,O=Example"
  std::string issuer;
  std::string serial;  // hexadecimal
  std::vector<std::string> dns_names;
  std::vector<std::string> uris;  // SPIFFE ids among them: "spiffe://example.org/worker"
};

// Empty: nobody has proved anything.
struct PeerIdentity {
  std::optional<ProcessIdentity> process;
  std::optional<CertificateIdentity> certificate;
};

}  // namespace rrpc::provider
