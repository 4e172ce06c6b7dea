// TLS as providers with sockets use it. What implements it is a shared object of its own (provider/tls/, rrpc/_tls.so),
// which alone is linked to OpenSSL and is loaded only where TLS is asked for.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "provider/identity.h"

namespace rrpc::provider {

enum class TlsRole : uint8_t { kClient, kServer };

// Whoever has a certificate of the authorities given is the server: for clusters that have an authority of their own.
constexpr char kAnyName[] = "*";

// Paths of PEM files or PEM text itself, and whom to trust. Equal options may share one TlsContext.
struct TlsOptions {
  std::string certificate;  // with the chain behind it; a server must have one
  std::string key;
  std::string authorities;  // whom to trust. A client without takes the system's; a server with asks for certificates
  std::string revoked;      // revocation lists, one of each authority of the chain; empty: nothing is looked up
  // A client: the name or IP address that the server's certificate must have, instead of the one that was dialled, or
  // a SPIFFE id ("spiffe://example.org/trainer"), or kAnyName.
  std::string peer_name;
  bool operator==(const TlsOptions&) const = default;
  auto operator<=>(const TlsOptions&) const = default;
};

// Key material that both ends of a TLS connection share and nobody else has (RFC 8446, section 7.5).
using ExportedKey = std::array<std::byte, 32>;
using Authenticator = std::array<std::byte, 32>;

// One end of one TLS connection over a nonblocking socket, which is passed in. One thread at a time.
class TlsChannel {
 public:
  struct Outcome {
    size_t bytes = 0;  // of plaintext that were taken or given
    size_t cost = 0;   // of read(): at least a KiB for each record, as many small ones take long
    bool end_of_stream = false;
    int error_number = 0;  // EAGAIN: not now; EPROTO: see error(); else the socket's
  };

  virtual ~TlsChannel() = default;
  // Goes on with the handshake: true once it is over, false where the socket must be ready first. An error says why
  // there is no connection, for the user; the alert that the peer is to get has been sent where the socket took it.
  virtual Result<bool> handshake(int fd) = 0;
  // Whether handshake() waits for the socket to take more.
  virtual bool wants_write() const = 0;
  // Fills the parts in order. Few bytes may be given where more have come: see has_input().
  virtual Outcome read(int fd, std::span<const iovec> parts) = 0;
  // Whether read() has something to give though the socket may be silent.
  virtual bool has_input() const = 0;
  // Encrypts some or all of the parts and writes as much as the socket takes. What it doesn't take is kept, so that
  // the parts' memory is free again; EAGAIN only where nothing was taken. No parts: writes what was kept.
  virtual Outcome write(int fd, std::span<const iovec> parts) = 0;
  // Whether write() has kept something.
  virtual bool has_output() const = 0;
  // The end of what this end sends: what write() has kept, `rest` encrypted, and the closing alert.
  virtual std::vector<std::byte> farewell(Bytes rest) = 0;
  // Why read() or write() gave EPROTO.
  virtual const Status& error() const = 0;
  virtual const PeerIdentity& peer() const = 0;
  // "TLSv1.3 TLS_AES_256_GCM_SHA384"
  virtual std::string description() const = 0;
  virtual ExportedKey export_key(std::string_view label) const = 0;
};

// One's certificate, and whom one trusts; read again when the files have changed. Thread-safe; outlives its channels.
class TlsContext {
 public:
  // Handshakes that came to nothing, and why the last one did.
  struct Refusals {
    uint64_t count = 0;
    std::string last;
  };

  virtual ~TlsContext() = default;
  // `dialled`: the host that a client connects to, without the port.
  virtual Result<std::unique_ptr<TlsChannel>> open(const std::string& dialled) = 0;
  // HMAC-SHA-256 (RFC 2104).
  virtual Authenticator authenticate(const ExportedKey& key, Bytes message) const = 0;
  // Looks whether the files have changed. An error says why they can't be used, so that the old ones still are.
  virtual Status reload() = 0;
  virtual void note_refused(const std::string& why) = 0;
  virtual Refusals refusals() const = 0;
};

constexpr char kTlsEntryName[] = "rrpc_open_tls";
// extern "C". Gives null and says in `why` which file is wrong and how.
using TlsEntry = void (*)(const char* build, TlsRole role, const TlsOptions& options, std::shared_ptr<TlsContext>* out,
                          Status* why);

}  // namespace rrpc::provider
