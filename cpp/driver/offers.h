// What a server behind rrpc:// tells in HELLO of better ways to reach it, and what a client makes of that.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "driver/address.h"
#include "rpc/messages.h"

namespace rrpc::driver {

using AdapterFields = std::vector<std::map<std::string, std::string>>;  // Device::describe()

// "127.0.0.1" and "[::1]" of "host:port".
std::string host_of(const std::string& host_and_port);
std::string port_of(const std::string& host_and_port);

// Where a server that listens at `bound` over TCP may listen for verbs: at no interface where TCP isn't heard.
// `scheme`: of its address; rrpc leaves both ways open, verbs and verbs+tcp are one each.
struct VerbsPlan {
  // At each of these. A wildcard would do for most, but Soft-iWARP then hears nothing from its own host.
  std::vector<std::string> hosts;
  bool by_socket = false;  // for an adapter without such an address: verbs+tcp:// at the host where TCP is
};
VerbsPlan plan_verbs(const AdapterFields& adapters, const std::string& bound, const std::string& scheme);
// Adds one to the addresses offered. False: a HELLO in the smallest slot has no room for it.
bool add_offer(std::string& offered, const std::string& address);

// Where a server that answers at `dialled` sends its clients on to: another port of the same host, or the socket whose
// path goes on with a dot and `go_to`. ProtocolError for anything else, Unavailable for none.
Result<Address> sent_on(const Address& dialled, const std::string& go_to);

// Whether calls may stay on the TCP connection that HELLO came by.
bool offers_tcp(const rpc::HelloFields& hello);
struct Candidates {
  std::vector<Address> addresses;  // to be tried in this order
  std::string why_none;
};
// The addresses to try for "shm" or "verbs"; `dialled` is where HELLO came from. Its scheme may insist on one way.
Candidates candidates(const std::string& transport, const rpc::HelloFields& hello, const Address& dialled);

}  // namespace rrpc::driver
