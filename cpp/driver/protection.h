// What protects a connection over RDMA that stands beside a TLS connection: each end names the weakest mode that it
// accepts. kNone: it accepts none, and RDMA isn't used beside TLS.
#pragma once

#include <string>

#include "base/result.h"
#include "provider/protection.h"

namespace rrpc::driver {

using provider::Protection;
using provider::protection_name;

// InvalidArgument lists the right names; `what` is what the text was given as.
Result<Protection> parse_protection(std::string_view text, const std::string& what);
// That both accept: the stronger one; kNone where one accepts none.
Protection agreed(Protection one, Protection other);

}  // namespace rrpc::driver
