// Certificates, keys and authorities, as they stood in their files when they were last read.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "provider/tls.h"
#include "provider/tls/openssl.h"

namespace rrpc::provider::tls {

// Tickets of servers, for handshakes without certificates. They go with the files that they were made under.
class Sessions {
 public:
  // Keeps it for that host, for one handshake.
  void put(const std::string& host, Session session);
  Session take(const std::string& host);

 private:
  std::mutex mutex_;
  std::map<std::string, Session> by_host_;
};

// What was read together. Channels keep theirs while others are read.
struct Loaded {
  SslContext context;
  Sessions sessions;
};

class OpenSslContext final : public TlsContext {
 public:
  static Result<std::shared_ptr<TlsContext>> create(TlsRole role, const TlsOptions& options);
  Result<std::unique_ptr<TlsChannel>> open(const std::string& dialled) override;
  Authenticator authenticate(const ExportedKey& key, Bytes message) const override;
  Status reload() override;
  void note_refused(const std::string& why) override;
  Refusals refusals() const override;

 private:
  // Of one file: when and what was last written there.
  struct Stamp {
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
    int64_t size_bytes = -1;
    uint64_t inode = 0;
    bool operator==(const Stamp&) const = default;
  };

  OpenSslContext(TlsRole role, TlsOptions options) : role_(role), options_(std::move(options)) {}
  std::vector<Stamp> stamps() const;
  Result<std::shared_ptr<Loaded>> load() const;
  std::shared_ptr<Loaded> current();

  const TlsRole role_;
  const TlsOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<Loaded> loaded_;
  std::vector<Stamp> stamps_;
  TimeNs looked_at_ = 0;
  Status reload_failure_;
  Refusals refusals_;
};

}  // namespace rrpc::provider::tls
