// AES-256-GCM by OpenSSL's EVP, with contexts that live as long as their key.
#pragma once

#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <array>
#include <memory>

#include "provider/protection.h"
#include "provider/tls/openssl.h"

namespace rrpc::provider::tls {

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, FreeWith<EVP_CIPHER_CTX_free>>;
using CipherAlgorithm = std::unique_ptr<EVP_CIPHER, FreeWith<EVP_CIPHER_free>>;
using KeyDerivation = std::unique_ptr<EVP_KDF, FreeWith<EVP_KDF_free>>;

// What is fetched from OpenSSL once, as fetching takes longer than a message.
class OpenSslCiphers final : public CipherFactory, public std::enable_shared_from_this<OpenSslCiphers> {
 public:
  static Result<std::shared_ptr<OpenSslCiphers>> create();
  Result<std::unique_ptr<Cipher>> make(const ExportedKey& secret, Bytes transcript,
                                       std::string_view label) const override;

  const EVP_CIPHER* algorithm() const { return algorithm_.get(); }
  // HKDF-SHA256; an empty salt leaves extraction out.
  bool derive(const ExportedKey& secret, Bytes salt, Bytes info, ExportedKey& key) const;

 private:
  CipherAlgorithm algorithm_;
  KeyDerivation derivation_;
};

// Keys by number, each from the direction's secret. The two used last are kept: what was named under the key before the
// newest may be fetched late.
class OpenSslCipher final : public Cipher {
 public:
  OpenSslCipher(std::shared_ptr<const OpenSslCiphers> ciphers, const ExportedKey& secret)
      : ciphers_(std::move(ciphers)), secret_(secret) {}
  ~OpenSslCipher() override;

  bool seal(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out, CipherTag& tag) override;
  Opened open(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out,
              const CipherTag& tag) override;

 private:
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  struct Keyed {
    uint64_t number = kNoKey;
    CipherContext context;
  };

  // With this nonce, ready for the text; null: out of memory.
  EVP_CIPHER_CTX* start(const CipherNonce& nonce, Bytes aad, Bytes more_aad, int encrypt);
  bool load(Keyed& keyed, uint64_t number, int encrypt) const;

  const std::shared_ptr<const OpenSslCiphers> ciphers_;
  ExportedKey secret_;
  std::array<Keyed, 2> keys_;
};

}  // namespace rrpc::provider::tls
