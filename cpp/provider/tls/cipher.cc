#include "provider/tls/cipher.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace rrpc::provider::tls {
namespace {

constexpr size_t kNonceBytes = 12;
// OpenSSL's lengths are ints.
constexpr size_t kStepBytes = size_t{1} << 30;

const unsigned char* data_of(Bytes bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

bool feed(EVP_CIPHER_CTX* context, Bytes in, std::byte* out) {
  while (!in.empty()) {
    const size_t step = std::min(in.size(), kStepBytes);
    int length = 0;
    if (EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(out), &length, data_of(in),
                         static_cast<int>(step)) != 1)
      return false;
    in = in.subspan(step);
    if (out != nullptr) out += step;
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<OpenSslCiphers>> OpenSslCiphers::create() {
  auto made = std::make_shared<OpenSslCiphers>();
  made->algorithm_.reset(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr));
  made->derivation_.reset(EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr));
  if (made->algorithm_ != nullptr && made->derivation_ != nullptr) return made;
  return failed_precondition("this OpenSSL has no AES-256-GCM or no HKDF: " + take_error().text);
}

bool OpenSslCiphers::derive(const ExportedKey& secret, Bytes salt, Bytes info, ExportedKey& key) const {
  const std::unique_ptr<EVP_KDF_CTX, FreeWith<EVP_KDF_CTX_free>> context(EVP_KDF_CTX_new(derivation_.get()));
  if (context == nullptr) return false;
  char digest[] = "SHA256";
  int mode = salt.empty() ? EVP_KDF_HKDF_MODE_EXPAND_ONLY : EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND;
  const auto octets = [](const char* name, Bytes bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
  };
  OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                             OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
                             octets(OSSL_KDF_PARAM_KEY, secret),
                             octets(OSSL_KDF_PARAM_INFO, info),
                             OSSL_PARAM_construct_end(),
                             OSSL_PARAM_construct_end()};
  if (!salt.empty()) parameters[4] = octets(OSSL_KDF_PARAM_SALT, salt);
  const bool derived =
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(), parameters) == 1;
  if (!derived) ERR_clear_error();
  return derived;
}

Result<std::unique_ptr<Cipher>> OpenSslCiphers::make(const ExportedKey& secret, Bytes transcript,
                                                     std::string_view label) const {
  ExportedKey of_direction{};
  const std::byte nothing{};
  const Bytes salt = transcript.empty() ? Bytes(&nothing, 1) : transcript;
  if (!derive(secret, salt, as_bytes(label), of_direction)) return out_of_memory();
  auto cipher = std::make_unique<OpenSslCipher>(shared_from_this(), of_direction);
  OPENSSL_cleanse(of_direction.data(), of_direction.size());
  return std::unique_ptr<Cipher>(std::move(cipher));
}

OpenSslCipher::~OpenSslCipher() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

bool OpenSslCipher::load(Keyed& keyed, uint64_t number, int encrypt) const {
  if (keyed.context == nullptr) keyed.context.reset(EVP_CIPHER_CTX_new());
  keyed.number = kNoKey;
  std::array<std::byte, 4 + sizeof(number)> info{std::byte{'k'}, std::byte{'e'}, std::byte{'y'}, std::byte{' '}};
  std::memcpy(info.data() + 4, &number, sizeof(number));
  ExportedKey key{};
  const bool loaded =
      keyed.context != nullptr && ciphers_->derive(secret_, {}, info, key) &&
      EVP_CipherInit_ex2(keyed.context.get(), ciphers_->algorithm(), reinterpret_cast<const unsigned char*>(key.data()),
                         nullptr, encrypt, nullptr) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  if (loaded) keyed.number = number;
  return loaded;
}

EVP_CIPHER_CTX* OpenSslCipher::start(const CipherNonce& nonce, Bytes aad, Bytes more_aad, int encrypt) {
  auto keyed = std::ranges::find(keys_, nonce.key, &Keyed::number);
  if (keyed == keys_.end()) {
    // The lower number is the older key; kNoKey, the highest, is none.
    keyed = std::ranges::min_element(keys_, {}, [](const Keyed& one) { return one.number + 1; });
    if (!load(*keyed, nonce.key, encrypt)) return nullptr;
  }
  std::array<unsigned char, kNonceBytes> bytes{};
  std::memcpy(bytes.data(), &nonce.part, sizeof(nonce.part));
  std::memcpy(bytes.data() + sizeof(nonce.part), &nonce.number, sizeof(nonce.number));
  EVP_CIPHER_CTX* const context = keyed->context.get();
  const bool ready = EVP_CipherInit_ex2(context, nullptr, nullptr, bytes.data(), encrypt, nullptr) == 1 &&
                     feed(context, aad, nullptr) && feed(context, more_aad, nullptr);
  return ready ? context : nullptr;
}

bool OpenSslCipher::seal(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out,
                         CipherTag& tag) {
  EVP_CIPHER_CTX* const context = start(nonce, aad, more_aad, 1);
  int length = 0;
  unsigned char none[1];
  const bool sealed = context != nullptr && feed(context, text, out) &&
                      EVP_CipherFinal_ex(context, none, &length) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
  if (!sealed) ERR_clear_error();
  return sealed;
}

Opened OpenSslCipher::open(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out,
                           const CipherTag& tag) {
  EVP_CIPHER_CTX* const context = start(nonce, aad, more_aad, 0);
  int length = 0;
  unsigned char none[1];
  const bool worked =
      context != nullptr &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, const_cast<std::byte*>(tag.data())) == 1 &&
      feed(context, text, out);
  // What the last step compares is the tag; the steps before it fail for lack of memory alone.
  const bool genuine = worked && EVP_CipherFinal_ex(context, none, &length) == 1;
  if (!genuine) ERR_clear_error();
  return genuine ? Opened::kGenuine : worked ? Opened::kForged : Opened::kOutOfMemory;
}

}  // namespace rrpc::provider::tls
