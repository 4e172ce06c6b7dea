// One TLS connection: OpenSSL between the plaintext and the socket.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "provider/tls/context.h"

namespace rrpc::provider::tls {

constexpr std::array<unsigned char, 7> kAlpn{6, 'r', 'r', 'p', 'c', '/', '1'};

// All that a peer may send before it is known.
constexpr size_t kHandshakeBytesMax = 64 << 10;

class Channel final : public TlsChannel {
 public:
  Channel(std::shared_ptr<Loaded> loaded, TlsRole role, const TlsOptions& options)
      : loaded_(std::move(loaded)), role_(role), options_(options) {}
  Status prepare(const std::string& dialled);

  Result<bool> handshake(int fd) override;
  bool wants_write() const override { return has_output(); }
  Outcome read(int fd, std::span<const iovec> parts) override;
  bool has_input() const override { return SSL_has_pending(ssl_.get()) == 1; }
  Outcome write(int fd, std::span<const iovec> parts) override;
  bool has_output() const override { return out_begin_ < out_.size(); }
  std::vector<std::byte> farewell(Bytes rest) override;
  const Status& error() const override { return error_; }
  const PeerIdentity& peer() const override { return peer_; }
  std::string description() const override;
  ExportedKey export_key(std::string_view label) const override;

  // OpenSSL's callback for a ticket that the server sent.
  static int keep_session(SSL* ssl, SSL_SESSION* session);
  // OpenSSL's callback for each certificate that it has looked at: keeps the one that is refused, for the error.
  static int note_verified(int accepted, X509_STORE_CTX* store);

 private:
  class Cursor;

  static const BIO_METHOD* bio_method();
  static int receive(BIO* bio, char* data, int size);
  static int collect(BIO* bio, const char* data, int size);
  static void note_message(int written, int version, int content_type, const void* bytes, size_t length, SSL* ssl,
                           void* unused);
  static long control(BIO* bio, int command, long number, void* pointer);

  Status check_name_of_server() const;
  Status finish();
  Status explain(const OpenSslError& error);
  std::string why_not_verified() const;
  std::string other_end() const { return role_ == TlsRole::kClient ? "server" : "client"; }
  bool seal(Bytes plaintext);
  Status roll_key();
  Outcome why_nothing_was_read(int result);
  bool flush(int fd, int& error_number);

  const std::shared_ptr<Loaded> loaded_;
  const TlsRole role_;
  const TlsOptions options_;
  std::string host_;  // a client: that was dialled
  Ssl ssl_;
  PeerIdentity peer_;
  Status error_;

  int fd_ = -1;  // during a call
  bool handshaking_ = true;
  size_t handshake_bytes_ = 0;
  int first_byte_ = -1;
  uint64_t received_bytes_ = 0;
  uint64_t notices_ = 0;  // handshake messages after the handshake
  bool too_many_notices_ = false;
  Certificate refused_;
  bool socket_ended_ = false;
  int socket_errno_ = 0;

  uint64_t records_sealed_ = 0;
  std::vector<std::byte> out_;  // encrypted, yet to be written
  size_t out_begin_ = 0;
};

}  // namespace rrpc::provider::tls
