#include "provider/tls/names.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/x509v3.h>

#include <array>

#include "base/text.h"

namespace rrpc::provider::tls {
namespace {

using Names = std::unique_ptr<GENERAL_NAMES, FreeWith<GENERAL_NAMES_free>>;

std::string text_in(BIO* memory) {
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(memory, &bytes);
  return length > 0 ? one_line({bytes, static_cast<size_t>(length)}) : std::string();
}

std::string name_text(const X509_NAME* name) {
  const Bio memory(BIO_new(BIO_s_mem()));
  if (memory == nullptr || X509_NAME_print_ex(memory.get(), name, 0, XN_FLAG_RFC2253) < 0) return {};
  return text_in(memory.get());
}

std::string serial_text(X509* certificate) {
  const std::unique_ptr<BIGNUM, FreeWith<BN_free>> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  char* const hexadecimal = number == nullptr ? nullptr : BN_bn2hex(number.get());
  if (hexadecimal == nullptr) return {};
  std::string text = hexadecimal;
  OPENSSL_free(hexadecimal);
  return text;
}

// Names with control characters or a zero byte are left out: nothing that is compared as text may have them.
void append_name(std::vector<std::string>& names, const ASN1_IA5STRING* name) {
  std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
                   static_cast<size_t>(ASN1_STRING_length(name)));
  if (!text.empty() && one_line(text) == text) names.push_back(std::move(text));
}

}  // namespace

CertificateIdentity identity_of(X509* certificate) {
  CertificateIdentity identity{.subject = name_text(X509_get_subject_name(certificate)),
                               .issuer = name_text(X509_get_issuer_name(certificate)),
                               .serial = serial_text(certificate),
                               .dns_names = {},
                               .uris = {}};
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) append_name(identity.dns_names, name->d.dNSName);
    if (name->type == GEN_URI) append_name(identity.uris, name->d.uniformResourceIdentifier);
  }
  return identity;
}

std::string names_of(const CertificateIdentity& identity) {
  std::string text;
  for (const std::string& name : identity.dns_names) text += (text.empty() ? "DNS " : ", DNS ") + name;
  for (const std::string& name : identity.uris) text += (text.empty() ? "URI " : ", URI ") + name;
  return text.empty() ? "no DNS name or URI" : text;
}

std::string time_text(const ASN1_TIME* time) {
  const Bio memory(BIO_new(BIO_s_mem()));
  if (memory == nullptr || ASN1_TIME_print(memory.get(), time) != 1) return "an unreadable time";
  return text_in(memory.get());
}

bool is_ip_address(const std::string& host) {
  std::array<std::byte, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace rrpc::provider::tls
