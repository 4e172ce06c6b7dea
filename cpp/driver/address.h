// "scheme://rest". Schemes: rrpc (the best way both ends share), and the providers' (kSchemes). rrpcs and tcps are rrpc
// and tcp with TLS.
#pragma once

#include <algorithm>
#include <string>

#include "base/result.h"

namespace rrpc::driver {

struct Address {
  std::string scheme;
  std::string rest;
  bool secure = false;
  std::string to_string() const { return shown_scheme() + "://" + rest; }
  std::string shown_scheme() const { return secure ? scheme + "s" : scheme; }
  bool may_be_secure() const { return scheme == "rrpc" || scheme == "tcp"; }
  // "?device=rxe0" and the like, which follow what is connected to; empty where there are none.
  std::string options() const { return rest.substr(std::min(rest.find('?'), rest.size())); }
  std::string without_options() const { return rest.substr(0, rest.find('?')); }
};

// InvalidArgument says what is wrong and shows a good one.
Result<Address> parse_address(const std::string& text);

}  // namespace rrpc::driver
