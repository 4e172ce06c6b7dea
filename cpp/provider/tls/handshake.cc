// From the socket's connection to a peer whose certificate was verified, and what to say where it can't be.
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <utility>

#include "provider/tls/channel.h"
#include "provider/tls/names.h"
#include "provider/tls/pem.h"

namespace rrpc::provider::tls {
namespace {

constexpr int kAlertReasons = 1000;     // SSL_AD_REASON_OFFSET: an alert of the peer is this and its number
constexpr int kPlainFrame = 0xA7;       // the first byte of rrpc without TLS
constexpr int kHandshakeRecord = 0x16;  // the first byte of TLS, unless it is an alert
constexpr int kAlertRecord = 0x15;

// The alert by which rrpc without TLS sees what it has met.
constexpr std::byte kHandshakeFailure[] = {std::byte{kAlertRecord},
                                           std::byte{3},
                                           std::byte{3},
                                           std::byte{0},
                                           std::byte{2},
                                           std::byte{2},
                                           std::byte{SSL_AD_HANDSHAKE_FAILURE}};

Status refused(std::string why) { return {StatusCode::kUnauthenticated, std::move(why)}; }

std::string now_text() {
  const std::unique_ptr<ASN1_TIME, FreeWith<ASN1_TIME_free>> now(ASN1_TIME_set(nullptr, std::time(nullptr)));
  return time_text(now.get());
}

// What the peer didn't like in this end, by the alert that it sent.
const char* alert_text(int alert) {
  switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
      return "finds its certificate bad";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
      return "finds its certificate not made for this use";
    case SSL_AD_CERTIFICATE_REVOKED:
      return "finds its certificate revoked";
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "finds its certificate expired or not valid yet";
    case SSL_AD_UNKNOWN_CA:
      return "trusts no authority that has signed its certificate";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "asks for a certificate, and there is none (tls_cert, tls_key)";
    case SSL_AD_NO_APPLICATION_PROTOCOL:
      return "doesn't speak rrpc";
    case SSL_AD_PROTOCOL_VERSION:
      return "has no TLS 1.3";
    default:
      return nullptr;
  }
}

}  // namespace

Status Channel::prepare(const std::string& dialled) {
  ERR_clear_error();
  ssl_.reset(SSL_new(loaded_->context.get()));
  Bio bio(BIO_new(bio_method()));
  if (ssl_ == nullptr || bio == nullptr) return out_of_memory();
  BIO_set_data(bio.get(), this);
  BIO_set_init(bio.get(), 1);
  SSL_set_app_data(ssl_.get(), this);
  SSL_set_msg_callback(ssl_.get(), note_message);
  BIO_up_ref(bio.get());
  SSL_set0_rbio(ssl_.get(), bio.get());
  SSL_set0_wbio(ssl_.get(), bio.release());
  if (role_ == TlsRole::kServer) {
    SSL_set_accept_state(ssl_.get());
    return {};
  }
  SSL_set_connect_state(ssl_.get());
  host_ = dialled;
  const std::string& name = options_.peer_name.empty() ? dialled : options_.peer_name;
  if (const Session session = loaded_->sessions.take(host_)) SSL_set_session(ssl_.get(), session.get());
  if (options_.peer_name == kAnyName || name.starts_with(kSpiffe)) return {};  // for SPIFFE see finish()
  X509_VERIFY_PARAM* const rules = SSL_get0_param(ssl_.get());
  X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  const bool is_address = is_ip_address(name);
  if (!is_address) SSL_set_tlsext_host_name(ssl_.get(), name.c_str());
  const int set = is_address ? X509_VERIFY_PARAM_set1_ip_asc(rules, name.c_str())
                             : X509_VERIFY_PARAM_set1_host(rules, name.c_str(), name.size());
  if (set == 1) return {};
  ERR_clear_error();
  return invalid_argument("TLS: '" + name + "' is no name that a certificate could have");
}

Result<bool> Channel::handshake(int fd) {
  fd_ = fd;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const int kind = SSL_get_error(ssl_.get(), result);
  Status status;
  if (first_byte_ == kPlainFrame) {  // OpenSSL would wait for a whole record
    status = explain(take_error());
    out_.assign(std::begin(kHandshakeFailure), std::end(kHandshakeFailure));
  } else if (result == 1) {
    handshaking_ = false;
    status = finish();
    if (!status.ok()) SSL_shutdown(ssl_.get());
  } else if (kind != SSL_ERROR_WANT_READ) {
    status = explain(take_error());
  }
  int error_number = 0;
  if (!flush(fd, error_number) && error_number != 0 && status.ok())
    status = unavailable("the connection broke during the TLS handshake: " +
                         Status::from_errno(error_number, "send").message());
  if (status.ok()) return result == 1;
  error_ = status;
  return status;
}

// What OpenSSL doesn't look at.
Status Channel::finish() {
  const unsigned char* protocol = nullptr;
  unsigned int length = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &length);
  if (length != kAlpn.size() - 1 || !std::equal(protocol, protocol + length, kAlpn.begin() + 1))
    return refused("the " + other_end() + " speaks TLS, but not rrpc over it (ALPN rrpc/1)");
  const Certificate certificate(SSL_get1_peer_certificate(ssl_.get()));
  if (certificate == nullptr)
    return role_ == TlsRole::kClient ? refused("the server has shown no certificate") : Status();
  // A ticket may be older than the certificate's end.
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0)
    return refused("the " + other_end() + "'s certificate has expired");
  peer_.certificate = identity_of(certificate.get());
  return check_name_of_server();
}

Status Channel::check_name_of_server() const {
  const std::string& wanted = options_.peer_name;
  if (role_ == TlsRole::kServer || !wanted.starts_with(kSpiffe)) return {};
  // An X.509-SVID has one URI, no more (SPIFFE's X.509-SVID, section 2).
  const auto& uris = peer_.certificate->uris;
  if (uris.size() == 1 && uris.front() == wanted) return {};
  return refused("the server's certificate is for " + names_of(*peer_.certificate) + ", not for " + wanted);
}

std::string Channel::why_not_verified() const {
  const long verified = SSL_get_verify_result(ssl_.get());
  const std::string whose = "the " + other_end() + "'s certificate ";
  X509* const certificate = refused_.get();
  switch (verified) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: {
      const std::string& name = options_.peer_name.empty() ? host_ : options_.peer_name;
      const std::string has = certificate == nullptr ? "another name" : names_of(identity_of(certificate));
      return whose + "is for " + has + ", not for " + name + "; if that is the server, say so with tls_peer_name";
    }
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + "or one above it has expired" +
             (certificate == nullptr ? std::string()
                                     : " (valid until " + time_text(X509_get0_notAfter(certificate)) + ")") +
             "; here it is " + now_text();
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + "or one above it isn't valid yet" +
             (certificate == nullptr ? std::string()
                                     : " (valid from " + time_text(X509_get0_notBefore(certificate)) + ")") +
             "; here it is " + now_text() + ": is a clock wrong?";
    case X509_V_ERR_CERT_REVOKED:
      return whose + "is revoked";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return whose + "isn't signed by an authority of " +
             (options_.authorities.empty() ? "this system" : source_name(options_.authorities));
    default:
      return whose + "can't be accepted: " + X509_verify_cert_error_string(verified);
  }
}

Status Channel::explain(const OpenSslError& error) {
  const std::string other = other_end();
  if (first_byte_ == kPlainFrame && handshaking_)
    return refused("the " + other + " speaks rrpc without TLS: one end has TLS on, the other hasn't");
  if (handshaking_ && SSL_get_verify_result(ssl_.get()) != X509_V_OK) return refused(why_not_verified());
  if (error.reason > kAlertReasons) {
    const char* const known = alert_text(error.reason - kAlertReasons);
    return refused(known != nullptr ? "this end was refused: the " + other + " " + known
                                    : "the " + other + " refused the TLS connection: " + error.text);
  }
  if (error.reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
    return refused("the client has no certificate, and this server asks for one");
  if (socket_errno_ != 0)
    return unavailable("the connection broke: " + Status::from_errno(socket_errno_, "TLS").message());
  if (socket_ended_ && handshaking_)
    return unavailable("the " + other + " closed the connection during the TLS handshake");
  if (too_many_notices_)
    return Status::protocol_error("the " + other + " renews keys or sends tickets more often than a peer may");
  if (handshaking_ && handshake_bytes_ >= kHandshakeBytesMax)
    return Status::protocol_error("a TLS handshake of more than " + std::to_string(kHandshakeBytesMax) + " bytes");
  if (handshaking_ && first_byte_ >= 0 && first_byte_ != kHandshakeRecord && first_byte_ != kAlertRecord)
    return Status::protocol_error("the " + other + " doesn't speak TLS");
  return Status::protocol_error(handshaking_ ? "the TLS handshake failed: " + error.text
                                             : "what came over TLS isn't what was sent: " + error.text);
}

int Channel::note_verified(int accepted, X509_STORE_CTX* store) {
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  if (accepted == 1 || certificate == nullptr) return accepted;
  X509_up_ref(certificate);
  static_cast<Channel*>(SSL_get_app_data(ssl))->refused_.reset(certificate);
  return accepted;
}

int Channel::keep_session(SSL* ssl, SSL_SESSION* session) {
  auto* const self = static_cast<Channel*>(SSL_get_app_data(ssl));
  self->loaded_->sessions.put(self->host_, Session(session));
  return 1;  // it is ours now
}

}  // namespace rrpc::provider::tls
