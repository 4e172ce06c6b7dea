// Options of TLS with the certificates beside these tests: valid for a century, of an authority whose key is gone.
#pragma once

#include <string>

#include "driver/options.h"

namespace rrpc::driver::testing {

#ifdef RRPC_TEST_CERTIFICATES  // this build has TLS
inline constexpr char kTransportsUnderTest[] = "shm,tcp,tcps";

inline provider::TlsOptions test_certificates(const std::string& whose) {
  const std::string folder = RRPC_TEST_CERTIFICATES;
  return {.certificate = folder + "/" + whose + ".pem",
          .key = folder + "/" + whose + ".key",
          .authorities = folder + "/authority.pem",
          .revoked = {},
          .peer_name = {}};
}

// The options for that address: with certificates where it is one of TLS.
inline Options secured(const std::string& address, Options options, const std::string& whose) {
  if (address.starts_with("tcps")) options.files = test_certificates(whose);
  return options;
}

#else
inline constexpr char kTransportsUnderTest[] = "shm,tcp";

inline Options secured(const std::string&, Options options, const std::string&) { return options; }
#endif

}  // namespace rrpc::driver::testing
