#include "driver/address.h"

#include <algorithm>
#include <iterator>

#include "driver/devices.h"

namespace rrpc::driver {

Result<Address> parse_address(const std::string& text) {
  const size_t separator = text.find("://");
  if (separator == std::string::npos || separator == 0)
    return invalid_argument("address '" + text +
                            "' has no scheme; write it like rrpc://127.0.0.1:7471, tcp://host:port or shm://name");
  Address address{text.substr(0, separator), text.substr(separator + 3)};
  if (address.scheme == "rrpcs" || address.scheme == "tcps") {
    address.scheme.pop_back();
    address.secure = true;
  }
  const bool known = address.scheme == "rrpc" || std::ranges::find(kSchemes, address.scheme) != std::end(kSchemes);
  if (!known)
    return invalid_argument("address '" + text + "' has the unknown scheme '" + address.scheme +
                            "'; known are rrpc, shm, tcp, verbs and verbs+tcp, and rrpcs and tcps for TLS");
  if (address.rest.empty())
    return invalid_argument("address '" + text + "' names no " +
                            (address.scheme == "shm" ? "socket" : "host and port"));
  return address;
}

}  // namespace rrpc::driver
