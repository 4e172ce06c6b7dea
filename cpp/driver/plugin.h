// Loading the verbs provider, which is a shared object of its own beside the one that this code is in.
#pragma once

#include "base/status.h"
#include "provider/plugin.h"

namespace rrpc::driver {

// Fills `out` with its devices; else one line that says why there are none and what to do (they may be there all the
// same, see plugin.h of the provider). The object stays loaded for good. Looked into anew by each call, as an adapter
// may have appeared.
Status open_verbs(provider::VerbsDevices& out);

}  // namespace rrpc::driver
