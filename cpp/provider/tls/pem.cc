#include "provider/tls/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <cctype>
#include <memory>

namespace rrpc::provider::tls {
namespace {

constexpr size_t kPathShownMax = 64;  // of characters of base64 alone
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using RevocationList = std::unique_ptr<X509_CRL, FreeWith<X509_CRL_free>>;

// "TLS: /etc/rrpc/server.key: no private key can be read from it (no start line)"
Status unusable(const std::string& option, const std::string& what) {
  const OpenSslError error = take_error();
  return invalid_argument("TLS: " + source_name(option) + ": " + what +
                          (error.text.empty() ? "" : " (" + error.text + ")"));
}

Bio open_pem(const std::string& option) {
  if (is_pem_text(option)) return Bio(BIO_new_mem_buf(option.data(), static_cast<int>(option.size())));
  return Bio(BIO_new_file(option.c_str(), "r"));
}

// A key whose frame is missing or damaged, or that was encoded once more.
bool is_other_text(const std::string& option) {
  const bool base64 = std::ranges::all_of(
      option, [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=' || c == '\r'; });
  return option.find('\n') != std::string::npos || (base64 && option.size() > kPathShownMax);
}

int no_password(char*, int, int, void*) { return -1; }  // instead of asking on the terminal

// Whether the last block was followed by nothing that is PEM: the usual end of a file.
bool at_end() {
  const unsigned long error = ERR_peek_last_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

}  // namespace

bool is_pem_text(const std::string& option) { return option.find("-----BEGIN ") != std::string::npos; }

std::string source_name(const std::string& option) {
  if (is_pem_text(option)) return "the PEM text given";
  if (is_other_text(option)) return "the text given, which is neither a path nor in PEM form";
  return option;
}

Status use_certificate_chain(SSL_CTX* context, const std::string& option) {
  constexpr const char* kWrong = "no certificate in PEM form can be read from it";
  const Bio bio = open_pem(option);
  if (bio == nullptr) return unusable(option, kWrong);
  const Certificate own(PEM_read_bio_X509_AUX(bio.get(), nullptr, no_password, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return unusable(option, kWrong);
  while (const Certificate next{PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr)}) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return unusable(option, kWrong);
  }
  if (!at_end()) return unusable(option, "the chain behind the certificate can't be read");
  ERR_clear_error();
  return {};
}

Status use_key(SSL_CTX* context, const std::string& option, const std::string& certificate) {
  const Bio bio = open_pem(option);
  const Key key(bio == nullptr ? nullptr : PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return unusable(option, "no private key in PEM form, unencrypted and fitting the certificate in " +
                                source_name(certificate) + ", can be read from it");
  if (SSL_CTX_check_private_key(context) != 1)
    return unusable(option, "this is not the key of the certificate in " + source_name(certificate));
  return {};
}

Status trust_authorities(SSL_CTX* context, const std::string& option) {
  constexpr const char* kWrong = "no authorities' certificates in PEM form can be read from it";
  const Bio bio = open_pem(option);
  if (bio == nullptr) return unusable(option, kWrong);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  size_t count = 0;
  while (const Certificate next{PEM_read_bio_X509_AUX(bio.get(), nullptr, no_password, nullptr)}) {
    if (X509_STORE_add_cert(store, next.get()) != 1 || SSL_CTX_add_client_CA(context, next.get()) != 1)
      return unusable(option, kWrong);
    ++count;
  }
  if (count == 0 || !at_end()) return unusable(option, kWrong);
  ERR_clear_error();
  return {};
}

Status add_revocation_lists(X509_STORE* store, const std::string& option) {
  constexpr const char* kWrong = "no revocation lists in PEM form can be read from it";
  const Bio bio = open_pem(option);
  if (bio == nullptr) return unusable(option, kWrong);
  size_t count = 0;
  while (const RevocationList next{PEM_read_bio_X509_CRL(bio.get(), nullptr, no_password, nullptr)}) {
    if (X509_STORE_add_crl(store, next.get()) != 1) return unusable(option, kWrong);
    ++count;
  }
  if (count == 0 || !at_end()) return unusable(option, kWrong);
  ERR_clear_error();
  return {};
}

}  // namespace rrpc::provider::tls
