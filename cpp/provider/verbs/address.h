// "host:port?device=rxe0&port=1&gid=1": where to connect or listen, and by which adapter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "provider/socket.h"
#include "provider/verbs/adapter.h"

namespace rrpc::provider::verbs {

struct Address {
  std::string target;  // "host:port"
  std::string device;  // empty: whichever fits
  uint8_t port = 0;    // 0: whichever fits
  std::optional<int> gid;

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
};

// What the address names, where it names nothing what has the GID of `local` (a socket's address), where nothing has
// that the first active port. iWARP adapters, which only librdmacm connects, are refused.
Result<Place> choose_place(const Address& address, const SocketAddress& local);

// Whether an id that librdmacm has put on `adapter` and `port` is where the address wants it; the error names both.
Status check_place(const Address& address, const Adapter& adapter, uint8_t port);

// An address of the interface behind the adapter that the address names, of the target's family: binding to it
// makes the route leave there. Nothing where none is known.
std::optional<SocketAddress> source_address(const Address& address, int family);

// The GID that stands for a socket's address.
ibv_gid gid_of(const SocketAddress& address);

}  // namespace rrpc::provider::verbs
