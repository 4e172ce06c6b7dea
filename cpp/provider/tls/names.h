// Names in certificates.
#pragma once

#include <string>
#include <string_view>

#include "provider/identity.h"
#include "provider/tls/openssl.h"

namespace rrpc::provider::tls {

constexpr std::string_view kSpiffe = "spiffe://";

// `certificate` has been verified.
CertificateIdentity identity_of(X509* certificate);
// "DNS worker.example.org, URI spiffe://example.org/worker": for errors.
std::string names_of(const CertificateIdentity& identity);
// "Nov 28 16:00:00 2026 GMT"
std::string time_text(const ASN1_TIME* time);
bool is_ip_address(const std::string& host);

}  // namespace rrpc::provider::tls
