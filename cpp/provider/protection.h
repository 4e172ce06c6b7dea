// How what travels on one connection is protected, and the ciphers for it. What implements them is the shared object
// that has TLS, too (provider/tls.h); who uses them sees no OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "provider/tls.h"

namespace rrpc::provider {

enum class Protection : uint8_t {
  kNone,
  kIdentity,  // the peer proved who it is when it connected; what travels is as without
  kSign,      // every message and every fetched byte is checked against a tag
  kEncrypt,   // the same, and nobody else can read them
};

constexpr std::string_view protection_name(Protection protection) {
  constexpr std::array<std::string_view, 4> kNames{"none", "identity", "sign", "encrypt"};
  return kNames[static_cast<size_t>(protection)];
}

constexpr size_t kTagBytes = 16;
using CipherTag = std::array<std::byte, kTagBytes>;

// The nonce of AES-GCM is `part` and `number`, 96 bits. `key` says which of its direction's keys is meant; each is used
// with a nonce once.
struct CipherNonce {
  uint64_t key = 0;
  uint64_t number = 0;
  uint32_t part = 0;
};

enum class Opened : uint8_t {
  kGenuine,
  kForged,       // the tag isn't theirs
  kOutOfMemory,  // nothing is known of them
};

// AES-256-GCM with the keys of one direction of one connection. One thread at a time. False from seal(): out of memory.
class Cipher {
 public:
  virtual ~Cipher() = default;
  // Encrypts `text` to `out`, which is as long and may be the same memory. The tag is of `aad`, of `more_aad` behind it
  // and of the text; without text it is a GMAC.
  [[nodiscard]] virtual bool seal(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out,
                                  CipherTag& tag) = 0;
  // Decrypts likewise. Unless it is kGenuine, `out` has to be thrown away.
  [[nodiscard]] virtual Opened open(const CipherNonce& nonce, Bytes aad, Bytes more_aad, Bytes text, std::byte* out,
                                    const CipherTag& tag) = 0;
};

class CipherFactory {
 public:
  virtual ~CipherFactory() = default;
  // With keys that are derived (HKDF-SHA256) from a secret of both ends, from a transcript that both have seen, and
  // from a label. The same for the same three.
  virtual Result<std::unique_ptr<Cipher>> make(const ExportedKey& secret, Bytes transcript,
                                               std::string_view label) const = 0;
};

constexpr char kCiphersEntryName[] = "rrpc_open_ciphers";
// extern "C", in the shared object of TLS. Gives null and says why.
using CiphersEntry = void (*)(const char* build, std::shared_ptr<CipherFactory>* out, Status* why);

}  // namespace rrpc::provider
