// What the driver finds in this shared object.
#include <cstring>

#include "provider/plugin.h"
#include "provider/tls/cipher.h"
#include "provider/tls/context.h"

namespace {

rrpc::Status check_build(const char* build) {
  using namespace rrpc;  // NOLINT(google-build-using-namespace)
  if (std::strcmp(build, provider::kBuildId) == 0) return {};
  return failed_precondition(std::string("rrpc's TLS part is of another build (") + provider::kBuildId +
                             ") than the core (" + build + "); install rrpc anew");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void rrpc_open_tls(const char* build, rrpc::provider::TlsRole role,
                                                                     const rrpc::provider::TlsOptions& options,
                                                                     std::shared_ptr<rrpc::provider::TlsContext>* out,
                                                                     rrpc::Status* why) {
  using namespace rrpc;  // NOLINT(google-build-using-namespace)
  if (*why = check_build(build); !why->ok()) return;
  auto context = provider::tls::OpenSslContext::create(role, options);
  *why = context.status();
  if (context.ok()) *out = std::move(*context);
}

extern "C" __attribute__((visibility("default"))) void rrpc_open_ciphers(
    const char* build, std::shared_ptr<rrpc::provider::CipherFactory>* out, rrpc::Status* why) {
  using namespace rrpc;  // NOLINT(google-build-using-namespace)
  if (*why = check_build(build); !why->ok()) return;
  auto ciphers = provider::tls::OpenSslCiphers::create();
  *why = ciphers.status();
  if (ciphers.ok()) *out = std::move(*ciphers);
}
