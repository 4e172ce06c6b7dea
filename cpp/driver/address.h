// "scheme://rest". Schemes: rrpc (the best way both ends share), and the providers' (kSchemes). rrpcs and tcps are rrpc
// and tcp with TLS. The verbs schemes have no such name: there the options alone turn TLS on.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/result.h"

namespace rrpc::driver {

struct Address {
  std::string scheme;
  std::string rest;
  bool secure = false;
  std::vector<std::string> rails = {};  // "host:port" of each: the values of rail= of a verbs address, not in `rest`
  std::string to_string() const;
  std::string shown_scheme() const { return secure && !is_verbs() ? scheme + "s" : scheme; }
  bool is_verbs() const { return scheme == "verbs" || scheme == "verbs+tcp"; }
  // Connections begin over TCP and move from there to a transport that the server's HELLO offers.
  bool moves_on() const { return scheme == "rrpc" || (secure && is_verbs()); }
  // Where they begin. What follows the '?' of an address that moves on is for the adapters that they move to.
  Address first_leg() const { return moves_on() ? Address{"tcp", without_options(), secure} : *this; }
  // "?device=rxe0" and the like, which follow what is connected to; empty where there are none.
  std::string options() const { return rest.substr(std::min(rest.find('?'), rest.size())); }
  std::string without_options() const { return rest.substr(0, rest.find('?')); }
};

// Where each rail is dialled: by the same scheme, without what chooses an adapter here.
std::vector<Address> rail_addresses(const Address& address);

// InvalidArgument says what is wrong and shows a good one.
Result<Address> parse_address(const std::string& text);

}  // namespace rrpc::driver
