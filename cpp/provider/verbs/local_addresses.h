// Which of this machine's IP addresses lead to which adapter, as librdmacm maps them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace rrpc::provider::verbs {

// By adapter and port; loopback and link-local addresses aside, at which no other host reaches it.
using LocalAddresses = std::map<std::pair<std::string, uint8_t>, std::vector<std::string>>;
LocalAddresses local_addresses();

}  // namespace rrpc::provider::verbs
