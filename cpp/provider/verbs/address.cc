#include "provider/verbs/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace rrpc::provider::verbs {
namespace {

Result<int> parse_number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const bool hexadecimal = text.starts_with("0x");
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + (hexadecimal ? 2 : 0), end, value, hexadecimal ? 16 : 10);
  if (error != std::errc() || stop != end || value < least || value > most) {
    return invalid_argument("bad option '" + name + "=" + text + "': give a number from " + std::to_string(least) +
                            " to " + std::to_string(most));
  }
  return value;
}

Status parse_option(const std::string& option, Address& out) {
  const size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  if (name == "device") {
    if (value.empty()) return invalid_argument("the option 'device=' names no adapter; `rrpc-info` lists them");
    out.device = value;
  } else if (name == "port") {
    RRPC_ASSIGN_OR_RETURN(const int port, parse_number(name, value, 1, 255));
    out.port = static_cast<uint8_t>(port);
  } else if (name == "gid") {
    RRPC_ASSIGN_OR_RETURN(out.gid, parse_number(name, value, 0, 65535));
  } else if (name == "traffic_class") {
    RRPC_ASSIGN_OR_RETURN(out.policy.traffic_class, parse_number(name, value, 0, 255));
  } else if (name == "service_level") {
    RRPC_ASSIGN_OR_RETURN(out.policy.service_level, parse_number(name, value, 0, 15));
  } else if (name == "pkey") {
    RRPC_ASSIGN_OR_RETURN(out.policy.partition, parse_number(name, value, 1, 65535));
  } else if (name == "grh") {
    RRPC_ASSIGN_OR_RETURN(const int global_route, parse_number(name, value, 0, 1));
    out.policy.global_route = global_route != 0;
  } else {
    return invalid_argument("unknown option '" + name +
                            "'; there are device=NAME, port=NUMBER, gid=INDEX, traffic_class=0..255, "
                            "service_level=0..15, pkey=NUMBER and grh=1, and for clients rail=HOST:PORT");
  }
  return {};
}

bool same_gid(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0; }

Result<Gid> choose_gid(const Address& address, const Adapter& adapter, uint8_t port, const SocketAddress& local) {
  const std::vector<Gid> gids = adapter.gids(port);
  const std::string where = "port " + std::to_string(port) + " of " + adapter.name();
  if (gids.empty()) return failed_precondition(where + " has no GID; give its interface an address");
  if (address.gid) {
    for (const Gid& gid : gids) {
      if (gid.index == *address.gid) return gid;
    }
    std::string known;
    for (const Gid& gid : gids)
      known += (known.empty() ? "" : ", ") + std::to_string(gid.index) + " (" + gid.text + ")";
    return invalid_argument("GID index " + std::to_string(*address.gid) + " is unused on " + where + "; it has " +
                            known);
  }
  const ibv_gid wanted = gid_of(local);
  for (const Gid& gid : gids) {
    if (same_gid(gid.raw, wanted)) return gid;
  }
  // An address that routers know before one of the link alone.
  for (const Gid& gid : gids) {
    if (gid.raw.raw[0] != 0xfe) return gid;
  }
  return gids.front();
}

// Full and limited members of a partition have the same number apart from the top bit.
bool same_partition(uint16_t a, uint16_t b) { return ((a ^ b) & 0x7fff) == 0; }

Status choose_partition(Place& place) {
  if (!place.policy.partition) return {};
  std::string known;
  for (uint16_t index = 0; index < place.port_attributes.pkey_tbl_len; ++index) {
    __be16 entry = 0;
    if (ibv_query_pkey(place.adapter->context(), place.port, index, &entry) != 0) break;
    const uint16_t number = ntohs(entry);
    place.partition_index = index;
    if (number != 0 && same_partition(number, *place.policy.partition)) return {};
    if (number != 0) known += (known.empty() ? "" : ", ") + hexadecimal(number);
  }
  return invalid_argument("port " + std::to_string(place.port) + " of " + place.adapter->name() +
                          " is in no partition " + hexadecimal(*place.policy.partition) + "; it has " +
                          (known.empty() ? "none" : known));
}

Result<Place> place_on(const Address& address, Adapter& adapter, uint8_t port, const SocketAddress& local) {
  Place place{.adapter = &adapter, .port = port, .port_attributes = {}, .gid = {}, .policy = address.policy};
  RRPC_ASSIGN_OR_RETURN(place.port_attributes, adapter.active_port(port));
  RRPC_ASSIGN_OR_RETURN(place.gid, choose_gid(address, adapter, port, local));
  RRPC_RETURN_IF_ERROR(choose_partition(place));
  return place;
}

uint8_t port_count(const Adapter& adapter) { return adapter.attributes().phys_port_cnt; }

Result<Place> place_on_device(const Address& address, Adapter& adapter, const SocketAddress& local) {
  if (adapter.iwarp()) {
    return failed_precondition(adapter.name() + " is an iWARP adapter, which only librdmacm connects; use verbs://");
  }
  if (address.port != 0) return place_on(address, adapter, address.port, local);
  Status first_error;
  for (uint8_t port = 1; port <= port_count(adapter); ++port) {
    Result<Place> place = place_on(address, adapter, port, local);
    if (place.ok()) return place;
    if (first_error.ok()) first_error = place.status();
  }
  return first_error.ok() ? failed_precondition(adapter.name() + " has no port") : first_error;
}

bool has_gid(const Adapter& adapter, uint8_t port, const ibv_gid& wanted) {
  const std::vector<Gid> gids = adapter.gids(port);
  return std::any_of(gids.begin(), gids.end(), [&](const Gid& gid) { return same_gid(gid.raw, wanted); });
}

}  // namespace

Result<Address> parse_verbs_address(const std::string& text) {
  Address address;
  const size_t question = text.find('?');
  address.target = text.substr(0, question);
  for (size_t at = question; at != std::string::npos && at + 1 < text.size();) {
    const size_t end = text.find('&', at + 1);
    RRPC_RETURN_IF_ERROR(parse_option(text.substr(at + 1, end == std::string::npos ? end : end - at - 1), address));
    at = end;
  }
  RRPC_RETURN_IF_ERROR(parse_address(address.target).status());
  return address;
}

Status check_for_rdma_cm(const FabricPolicy& policy) {
  if (!policy.needs_own_path()) return {};
  return invalid_argument(
      "service_level, pkey and grh are for verbs+tcp:// addresses: over verbs:// they follow from the interface and "
      "from "
      "the subnet manager");
}

ibv_gid gid_of(const SocketAddress& address) {
  ibv_gid gid{};
  if (address.storage.ss_family == AF_INET6) {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr, sizeof(gid.raw));
  } else {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, 4);
  }
  return gid;
}

Result<Place> choose_place(const Address& address, const SocketAddress& local) {
  if (!address.device.empty()) {
    RRPC_ASSIGN_OR_RETURN(Adapter * named, Adapters::process().by_name(address.device));
    return place_on_device(address, *named, local);
  }
  RRPC_RETURN_IF_ERROR(Adapters::process().any_usable());
  const std::vector<Adapter*> adapters = Adapters::process().all();
  const ibv_gid wanted = gid_of(local);
  for (Adapter* adapter : adapters) {
    for (uint8_t port = 1; port <= port_count(*adapter) && !adapter->iwarp(); ++port) {
      const bool allowed = address.port == 0 || address.port == port;
      if (allowed && has_gid(*adapter, port, wanted)) return place_on(address, *adapter, port, local);
    }
  }
  Status last_error =
      failed_precondition("the only adapters are iWARP ones, which only librdmacm connects; use verbs://");
  for (Adapter* adapter : adapters) {
    if (adapter->iwarp()) continue;
    Result<Place> place = place_on_device(address, *adapter, local);
    if (place.ok()) return place;
    last_error = place.status();
  }
  return last_error;
}

std::string hexadecimal(uint32_t number) {
  char text[sizeof("0x00000000")];
  (void)std::snprintf(text, sizeof(text), "0x%04x", number);
  return text;
}

Status check_place(const Address& address, const Adapter& adapter, uint8_t port) {
  RRPC_RETURN_IF_ERROR(adapter.active_port(port).status());
  if (!address.device.empty() && address.device != adapter.name()) {
    return invalid_argument("the route to " + address.target + " leaves by " + adapter.name() + ", not by " +
                            address.device + " as the address asks; drop '?device=' or correct the route");
  }
  if (address.port != 0 && address.port != port) {
    return invalid_argument("the route to " + address.target + " leaves by port " + std::to_string(port) + " of " +
                            adapter.name() + ", not by port " + std::to_string(address.port) + " as the address asks");
  }
  return {};
}

std::optional<SocketAddress> source_address(const Address& address, int family) {
  const Result<Adapter*> adapter = Adapters::process().by_name(address.device);
  if (!adapter.ok()) return std::nullopt;
  std::vector<Gid> gids;
  for (uint8_t port = 1; port <= port_count(**adapter); ++port) {
    if (address.port != 0 && address.port != port) continue;
    for (const Gid& gid : (*adapter)->gids(port)) {
      if (!address.gid || *address.gid == gid.index) gids.push_back(gid);
    }
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return std::nullopt;
  std::optional<SocketAddress> fallback;
  std::optional<SocketAddress> exact;
  for (const ifaddrs* one = interfaces; one != nullptr && !exact; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
    SocketAddress candidate;
    candidate.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&candidate.storage, one->ifa_addr, candidate.length);
    for (const Gid& gid : gids) {
      if (same_gid(gid.raw, gid_of(candidate))) exact = candidate;
      // An iWARP adapter's GID is made of its hardware address: only its interface's name leads to an address.
      if (!fallback && !gid.network.empty() && gid.network == one->ifa_name) fallback = candidate;
    }
  }
  freeifaddrs(interfaces);
  return exact ? exact : fallback;
}

}  // namespace rrpc::provider::verbs
