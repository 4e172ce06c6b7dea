// "scheme://rest". Schemes: rrpc (the best way both ends share), and the providers' (kSchemes).
#pragma once

#include <string>

#include "base/result.h"

namespace rrpc::driver {

struct Address {
  std::string scheme;
  std::string rest;
  std::string to_string() const { return scheme + "://" + rest; }
};

// InvalidArgument says what is wrong and shows a good one.
Result<Address> parse_address(const std::string& text);

}  // namespace rrpc::driver
