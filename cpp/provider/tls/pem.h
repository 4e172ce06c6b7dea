// Certificates, keys and revocation lists in PEM form: from files, or from text that the user gave in their place.
#pragma once

#include <string>

#include "base/status.h"
#include "provider/tls/openssl.h"

namespace rrpc::provider::tls {

// Whether an option is the PEM text itself, rather than the path of a file that has it.
bool is_pem_text(const std::string& option);
// For messages: the path, or that it was given as text. Keys never appear in a message.
std::string source_name(const std::string& option);

// Each takes an option, and says which one can't be used and why.
Status use_certificate_chain(SSL_CTX* context, const std::string& option);
Status use_key(SSL_CTX* context, const std::string& option, const std::string& certificate);
// Trusts the certificates, and names them to clients that are asked for theirs.
Status trust_authorities(SSL_CTX* context, const std::string& option);
Status add_revocation_lists(X509_STORE* store, const std::string& option);

}  // namespace rrpc::provider::tls
