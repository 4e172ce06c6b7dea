#include "provider/tls/context.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "provider/tls/channel.h"
#include "provider/tls/pem.h"

namespace rrpc::provider::tls {
namespace {

constexpr TimeNs kLookPause = kSecond;  // between looks whether files have changed
constexpr size_t kSessionsMax = 256;
constexpr long kTicketSeconds = 600;
constexpr size_t kReadAheadBytes = 68 << 10;  // four records and their headers

// Of a client that comes with a ticket no other ticket is made: now and then it must show its certificate again, so
// that what a full handshake would find is found.
int choose_protocol(SSL* ssl, const unsigned char** out, unsigned char* out_length, const unsigned char* offered,
                    unsigned int offered_length, void*) {
  if (SSL_session_reused(ssl) == 1) SSL_set_num_tickets(ssl, 0);
  unsigned char* chosen = nullptr;
  const int result = SSL_select_next_proto(&chosen, out_length, kAlpn.data(), kAlpn.size(), offered, offered_length);
  *out = chosen;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

void set_policy(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_timeout(context, kTicketSeconds);
  SSL_CTX_set_num_tickets(context, 1);
}

Status use_certificate(SSL_CTX* context, const TlsOptions& options) {
  if (options.certificate.empty() != options.key.empty()) {
    return invalid_argument(std::string("TLS: a certificate and its key go together, and the ") +
                            (options.key.empty() ? "key" : "certificate") + " is missing");
  }
  if (options.certificate.empty()) return {};
  RRPC_RETURN_IF_ERROR(use_certificate_chain(context, options.certificate));
  return use_key(context, options.key, options.certificate);
}

Status trust(SSL_CTX* context, TlsRole role, const TlsOptions& options) {
  if (options.authorities.empty() && role == TlsRole::kServer) {
    if (options.revoked.empty()) return {};
    return invalid_argument("TLS: revocation lists need the authorities whose they are");
  }
  if (options.authorities.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else {
    RRPC_RETURN_IF_ERROR(trust_authorities(context, options.authorities));
  }
  if (!options.revoked.empty()) {
    X509_STORE* const store = SSL_CTX_get_cert_store(context);
    RRPC_RETURN_IF_ERROR(add_revocation_lists(store, options.revoked));
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, Channel::note_verified);
  return {};
}

}  // namespace

OpenSslError take_error() {
  OpenSslError error;
  const char* data = nullptr;
  int flags = 0;
  error.code = ERR_get_error_all(nullptr, nullptr, nullptr, &data, &flags);
  if (error.code != 0) {
    error.reason = ERR_GET_REASON(error.code);
    const char* const reason = ERR_reason_error_string(error.code);
    if (ERR_SYSTEM_ERROR(error.code)) {
      error.text = std::generic_category().message(error.reason);
      data = nullptr;
    } else {
      error.text = reason == nullptr ? "error " + std::to_string(error.reason) : reason;
    }
    if (data != nullptr && (flags & ERR_TXT_STRING) != 0 && *data != '\0') error.text.append(": ").append(data);
  }
  ERR_clear_error();
  return error;
}

void Sessions::put(const std::string& host, Session session) {
  std::lock_guard lock(mutex_);
  if (by_host_.size() >= kSessionsMax && !by_host_.contains(host)) by_host_.erase(by_host_.begin());
  by_host_[host] = std::move(session);
}

Session Sessions::take(const std::string& host) {
  std::lock_guard lock(mutex_);
  const auto it = by_host_.find(host);
  if (it == by_host_.end()) return nullptr;
  Session session = std::move(it->second);
  by_host_.erase(it);
  return session;
}

Result<std::shared_ptr<TlsContext>> OpenSslContext::create(TlsRole role, const TlsOptions& options) {
  std::shared_ptr<OpenSslContext> context(new OpenSslContext(role, options));
  if (role == TlsRole::kServer && options.certificate.empty())
    return invalid_argument("TLS: a server needs a certificate and its key");
  if (options.peer_name == kAnyName && options.authorities.empty())
    return invalid_argument("TLS: tls_peer_name='*' takes whoever has a certificate of tls_ca, and tls_ca is missing");
  context->stamps_ = context->stamps();
  context->looked_at_ = now_ns();
  RRPC_ASSIGN_OR_RETURN(context->loaded_, context->load());
  return std::shared_ptr<TlsContext>(std::move(context));
}

std::vector<OpenSslContext::Stamp> OpenSslContext::stamps() const {
  std::vector<Stamp> found;
  for (const std::string* path : {&options_.certificate, &options_.key, &options_.authorities, &options_.revoked}) {
    Stamp stamp;
    struct stat status{};
    if (!path->empty() && !is_pem_text(*path) && stat(path->c_str(), &status) == 0) {
      stamp.modified_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * kSecond + status.st_mtim.tv_nsec;
      stamp.changed_ns = static_cast<int64_t>(status.st_ctim.tv_sec) * kSecond + status.st_ctim.tv_nsec;
      stamp.size_bytes = status.st_size;
      stamp.inode = status.st_ino;
    }
    found.push_back(stamp);
  }
  return found;
}

Result<std::shared_ptr<Loaded>> OpenSslContext::load() const {
  ERR_clear_error();
  auto loaded = std::make_shared<Loaded>();
  const bool client = role_ == TlsRole::kClient;
  loaded->context.reset(SSL_CTX_new(client ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* const context = loaded->context.get();
  if (context == nullptr) return internal_error("TLS: OpenSSL gives no context: " + take_error().text);
  set_policy(context);
  RRPC_RETURN_IF_ERROR(use_certificate(context, options_));
  RRPC_RETURN_IF_ERROR(trust(context, role_, options_));
  if (client) {
    SSL_CTX_set_alpn_protos(context, kAlpn.data(), kAlpn.size());
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, Channel::keep_session);
  } else {
    static constexpr std::array<unsigned char, 4> kName{'r', 'r', 'p', 'c'};
    SSL_CTX_set_session_id_context(context, kName.data(), kName.size());
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  }
  return loaded;
}

std::shared_ptr<Loaded> OpenSslContext::current() {
  std::lock_guard lock(mutex_);
  const TimeNs now = now_ns();
  if (now - looked_at_ < kLookPause) return loaded_;
  looked_at_ = now;
  std::vector<Stamp> found = stamps();
  if (found == stamps_) {
    reload_failure_ = {};  // they are as before
    return loaded_;
  }
  auto loaded = load();
  reload_failure_ = loaded.status();
  if (loaded.ok()) {
    stamps_ = std::move(found);
    loaded_ = std::move(*loaded);
  }
  return loaded_;
}

Result<std::unique_ptr<TlsChannel>> OpenSslContext::open(const std::string& dialled) {
  auto channel = std::make_unique<Channel>(current(), role_, options_);
  RRPC_RETURN_IF_ERROR(channel->prepare(dialled));
  return std::unique_ptr<TlsChannel>(std::move(channel));
}

Authenticator OpenSslContext::authenticate(const ExportedKey& key, Bytes message) const {
  Authenticator out{};
  size_t length = 0;
  const auto* const made = EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(),
                                     reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                     reinterpret_cast<unsigned char*>(out.data()), out.size(), &length);
  RRPC_CHECK(made != nullptr && length == out.size(), "OpenSSL gives no HMAC");
  return out;
}

void OpenSslContext::note_refused(const std::string& why) {
  std::lock_guard lock(mutex_);
  ++refusals_.count;
  refusals_.last = why;
}

TlsContext::Refusals OpenSslContext::refusals() const {
  std::lock_guard lock(mutex_);
  return refusals_;
}

Status OpenSslContext::reload() {
  (void)current();
  std::lock_guard lock(mutex_);
  return reload_failure_;
}

}  // namespace rrpc::provider::tls
