// Loading what is a shared object of its own, beside the one that this code is in, since it is linked to libraries that
// not every machine has: the verbs provider and TLS.
#pragma once

#include <memory>

#include "base/result.h"
#include "provider/plugin.h"
#include "provider/protection.h"
#include "provider/tls.h"

namespace rrpc::driver {

// Fills `out` with its devices; else one line that says why there are none and what to do (they may be there all the
// same, see plugin.h of the provider). The object stays loaded for good. Looked into anew by each call, as an adapter
// may have appeared.
Status open_verbs(provider::VerbsDevices& out);
// Reads the files; an error names the one that is wrong, or says why there is no TLS here.
Result<std::shared_ptr<provider::TlsContext>> open_tls(provider::TlsRole role, const provider::TlsOptions& options);
// What Session::protect() takes; an error says why there is none here.
Result<std::shared_ptr<provider::CipherFactory>> open_ciphers();

}  // namespace rrpc::driver
