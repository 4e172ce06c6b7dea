// The ways between which rrpc:// chooses.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace rrpc::driver {

// Best first. "verbs" is both verbs:// and verbs+tcp://.
const std::vector<std::string>& all_transports();
bool lists(const std::vector<std::string>& transports, const std::string& transport);
std::string join(const std::vector<std::string>& items, const std::string& separator);

// Of "verbs,tcp". InvalidArgument lists the right names; `what` is what the text was given as.
Result<std::vector<std::string>> parse_transports(const std::string& text, const std::string& what);
Status validate_transports(const std::vector<std::string>& transports, const std::string& what);
// Those of the environment's RRPC_TRANSPORTS, else all.
Result<std::vector<std::string>> default_transports();

}  // namespace rrpc::driver
