// "host:port?device=rxe0&port=1&gid=1&traffic_class=106": where to connect or listen, by which adapter, and how the
// fabric is to treat what is sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "provider/socket.h"
#include "provider/verbs/adapter.h"

namespace rrpc::provider::verbs {

// How the packets of a connection's own end are marked. What isn't said is the fabric's to decide.
struct FabricPolicy {
  std::optional<uint8_t> traffic_class = {};  // of IPv6 and GRH; in IPv4 the TOS: DSCP in its upper six bits
  std::optional<uint8_t> service_level = {};  // which InfiniBand maps to a virtual lane, Ethernet to a priority
  std::optional<uint16_t> partition = {};     // a P_Key
  bool global_route = false;                  // a GRH within InfiniBand's subnet, too

  // librdmacm has these from the subnet manager and the interface.
  bool needs_own_path() const { return service_level || partition || global_route; }
};

struct Address {
  std::string target;  // "host:port"
  std::string device;  // empty: whichever fits
  uint8_t port = 0;    // 0: whichever fits
  std::optional<int> gid;
  FabricPolicy policy;

  bool chooses() const { return !device.empty() || port != 0 || gid.has_value(); }
};

// InvalidArgument says what is wrong and what there is to say.
Result<Address> parse_verbs_address(const std::string& text);

// An adapter, a port that is active, and an entry of the port's GID table.
struct Place {
  Adapter* adapter = nullptr;
  uint8_t port = 0;
  ibv_port_attr port_attributes{};
  Gid gid;
  FabricPolicy policy;
  uint16_t partition_index = 0;  // in the port's table
};

// What the address names, where it names nothing what has the GID of `local` (a socket's address), where nothing has
// that the first active port. iWARP adapters, which only librdmacm connects, are refused.
Result<Place> choose_place(const Address& address, const SocketAddress& local);

// Whether an id that librdmacm has put on `adapter` and `port` is where the address wants it; the error names both.
Status check_place(const Address& address, const Adapter& adapter, uint8_t port);

// An address of the interface behind the adapter that the address names, of the target's family: binding to it
// makes the route leave there. Nothing where none is known.
std::optional<SocketAddress> source_address(const Address& address, int family);

// InvalidArgument where rdma_cm connects: there the address may ask for a traffic class alone.
Status check_for_rdma_cm(const FabricPolicy& policy);

std::string hexadecimal(uint32_t number);  // "0x8001"

// The GID that stands for a socket's address.
ibv_gid gid_of(const SocketAddress& address);

}  // namespace rrpc::provider::verbs
