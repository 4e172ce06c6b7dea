#include "driver/address.h"

#include <algorithm>
#include <iterator>

#include "driver/devices.h"
#include "driver/transports.h"
#include "endpoint/exposure.h"

namespace rrpc::driver {
namespace {

constexpr std::string_view kRail = "rail=";

// What follows the '?', option by option.
std::vector<std::string> split_options(const Address& address) {
  std::vector<std::string> options;
  const std::string text = address.options();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('&', at + 1), text.size());
    options.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return options;
}

std::string with_options(const std::string& target, const std::vector<std::string>& options) {
  return options.empty() ? target : target + "?" + join(options, "&");
}

bool names_port(const std::string& place) {
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == place.size()) return false;
  return place.find(':') == colon || place[colon - 1] == ']';  // "[fd00::1]:7471"
}

// Moves the rails from `rest` to `rails`.
Status take_rails(Address& address) {
  std::vector<std::string> options = split_options(address);
  for (const std::string& option : options)
    if (option.starts_with(kRail)) address.rails.push_back(option.substr(kRail.size()));
  if (address.rails.empty()) return {};
  if (!address.is_verbs())
    return invalid_argument("rail= is for addresses of verbs:// and verbs+tcp://, not of " + address.scheme + "://");
  if (address.rails.size() > endpoint::kRailsMax)
    return invalid_argument(std::to_string(address.rails.size()) + " rails in an address; it may name " +
                            std::to_string(endpoint::kRailsMax));
  for (const std::string& rail : address.rails)
    if (!names_port(rail))
      return invalid_argument("bad option '" + std::string(kRail) + rail +
                              "': give the host and port of the server at another of its adapters");
  std::erase_if(options, [](const std::string& option) { return option.starts_with(kRail); });
  address.rest = with_options(address.without_options(), options);
  return {};
}

}  // namespace

std::string Address::to_string() const {
  std::string text = shown_scheme() + "://" + rest;
  for (const std::string& rail : rails)
    text.append(text.find('?') == std::string::npos ? "?" : "&").append(kRail) += rail;
  return text;
}

std::vector<Address> rail_addresses(const Address& address) {
  std::vector<std::string> options = split_options(address);
  std::erase_if(options, [](const std::string& option) {
    return option.starts_with("device=") || option.starts_with("port=") || option.starts_with("gid=");
  });
  std::vector<Address> found;
  for (const std::string& rail : address.rails) found.push_back({address.scheme, with_options(rail, options)});
  return found;
}

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
  RRPC_RETURN_IF_ERROR(take_rails(address));
  return address;
}

}  // namespace rrpc::driver
