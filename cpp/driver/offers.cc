#include "driver/offers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/text.h"
#include "driver/devices.h"
#include "driver/transports.h"
#include "provider/shm/address.h"

namespace rrpc::driver {
namespace {

// With the other fields at their longest, what is left of a slot of 512 bytes.
constexpr size_t kVerbsOfferBytesMax = 120;
constexpr size_t kGoToBytesMax = 32;
// Of a server that may be a stranger's.
constexpr size_t kCandidatesMax = 16;
constexpr size_t kPlaceBytesMax = 108;  // the path of a socket may have so many
constexpr size_t kReasonBytesMax = 200;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    if (!item.empty()) items.push_back(item);
  }
  return items;
}

std::string field(const std::map<std::string, std::string>& fields, const std::string& name) {
  const auto it = fields.find(name);
  return it == fields.end() ? std::string() : it->second;
}

std::optional<uint16_t> port_in(const std::string& text) {
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stop != end || port == 0) return std::nullopt;
  return port;
}

// Host and port. What follows a '?' is for this end to say.
bool is_place(const std::string& text) {
  static constexpr std::string_view kMarks = ".:[]-_%";
  const auto may_stand = [](unsigned char c) {
    return std::isalnum(c) != 0 || kMarks.find(static_cast<char>(c)) != std::string_view::npos;
  };
  return text.size() <= kPlaceBytesMax && std::ranges::all_of(text, may_stand) && port_in(port_of(text)).has_value();
}

std::string bracketed(const std::string& host) { return host.find(':') == std::string::npos ? host : "[" + host + "]"; }

Candidates shm_candidates(const rpc::HelloFields& hello) {
  if (field(hello, "host") != host_identity()) return {{}, "the server is on another host"};
  const std::string path = field(hello, "shm");
  if (path.size() > kPlaceBytesMax || one_line(path) != path)
    return {{}, "the server offers what is no socket: " + quoted(path)};
  return {{{"shm", path}}, ""};
}

Candidates verbs_candidates(const rpc::HelloFields& hello, const Address& dialled) {
  Candidates found;
  const std::string host = host_of(dialled.without_options());
  for (const std::string& address : split(field(hello, "verbs")))
    if (is_place(address) && found.addresses.size() < kCandidatesMax - 1)
      found.addresses.push_back({"verbs", address + dialled.options()});
  std::ranges::stable_partition(found.addresses, [&](const Address& a) { return host_of(a.rest) == host; });
  if (const auto port = port_in(field(hello, "verbs+tcp")))
    found.addresses.push_back({"verbs+tcp", host + ":" + std::to_string(*port) + dialled.options()});
  if (found.addresses.empty()) return {{}, "the server offers what is no address: " + quoted(field(hello, "verbs"))};
  if (dialled.is_verbs()) std::erase_if(found.addresses, [&](const Address& a) { return a.scheme != dialled.scheme; });
  if (found.addresses.empty()) found.why_none = "the server offers it by another way than " + dialled.scheme + "://";
  return found;
}

}  // namespace

std::string host_of(const std::string& host_and_port) { return host_and_port.substr(0, host_and_port.rfind(':')); }

std::string port_of(const std::string& host_and_port) { return host_and_port.substr(host_and_port.rfind(':') + 1); }

VerbsPlan plan_verbs(const AdapterFields& adapters, const std::string& bound, const std::string& scheme) {
  if (scheme == "verbs+tcp") return {.hosts = {}, .by_socket = true};
  VerbsPlan plan;
  const std::string host = host_of(bound);
  const bool every_ipv4 = host == "0.0.0.0";
  const bool every = host == "[::]";
  bool any_introduced = false;
  for (const auto& adapter : adapters) {
    if (!field(adapter, "why_not").empty()) continue;
    const std::vector<std::string> addresses = split(field(adapter, "addresses"));
    const bool introduced = field(adapter, "transport") != "iWARP";  // a queue pair there can be, over a socket
    if (introduced && addresses.empty()) plan.by_socket = true;
    if (introduced) any_introduced = true;
    for (const std::string& address : addresses) {
      const std::string shown = bracketed(address);
      if (every || shown == host || (every_ipv4 && shown == address)) plan.hosts.push_back(shown);
    }
  }
  if (plan.hosts.empty()) plan.by_socket = any_introduced;
  if (scheme == "verbs") plan.by_socket = false;
  return plan;
}

Result<Address> sent_on(const Address& dialled, const std::string& go_to) {
  if (go_to.empty()) return unavailable("none of the server's processes is ready; try again in a moment");
  const bool plain =
      go_to.size() <= kGoToBytesMax && std::ranges::all_of(go_to, [](unsigned char c) { return std::isalnum(c) != 0; });
  const std::string shown = plain ? "'" + go_to + "'" : std::to_string(go_to.size()) + " bytes that are no name";
  if (dialled.scheme == "shm") {
    RRPC_ASSIGN_OR_RETURN(const std::string path, provider::shm::socket_path(dialled.rest));
    if (plain) return Address{"shm", path + "." + go_to};
    return Status::protocol_error("the server sends its clients on to " + shown);
  }
  const auto port = port_in(go_to);
  if (!port) return Status::protocol_error("the server sends its clients on to port " + shown);
  return Address{dialled.scheme, host_of(dialled.without_options()) + ":" + std::to_string(*port) + dialled.options(),
                 dialled.secure};
}

bool add_offer(std::string& offered, const std::string& address) {
  if (offered.size() + 1 + address.size() > kVerbsOfferBytesMax) return false;
  offered += (offered.empty() ? "" : ",") + address;
  return true;
}

bool offers_tcp(const rpc::HelloFields& hello) {
  const std::string listed = field(hello, "transports");
  return listed.empty() || lists(split(listed), "tcp");
}

Candidates candidates(const std::string& transport, const rpc::HelloFields& hello, const Address& dialled) {
  if (field(hello, transport).empty() && field(hello, transport + "+tcp").empty()) {
    const std::string why = one_line(cut_text(field(hello, "no_" + transport), kReasonBytesMax));
    return {{}, why.empty() ? "the server offers none" : "the server offers none: " + why};
  }
  return transport == "shm" ? shm_candidates(hello) : verbs_candidates(hello, dialled);
}

}  // namespace rrpc::driver
