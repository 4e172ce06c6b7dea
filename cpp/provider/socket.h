// Addresses and sockets: parsing, resolving, dialling, listening. Every socket is nonblocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace rrpc::provider {

struct HostPort {
  std::string host;  // empty: every interface (to listen)
  std::string port;
};
Result<HostPort> parse_address(const std::string& address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
  uint16_t port() const;
  std::string to_string() const;  // "127.0.0.1:7471", "[::1]:7471"
};

enum class ResolveFor { kConnect, kListen };
Result<std::vector<SocketAddress>> resolve(const std::string& address, ResolveFor purpose, TimeNs deadline);

SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);
void set_connection_options(int fd);
Result<UniqueFd> listen_on(const SocketAddress& where, const std::string& address, int backlog);
// A socket that does nothing but be bound. Others may bind to the same only with SO_REUSEADDR.
Result<UniqueFd> hold_port(const SocketAddress& where);

// Tries the addresses of one host in turn without ever blocking.
class Dialler {
 public:
  Dialler() = default;
  Dialler(std::string target, std::vector<SocketAddress> candidates)
      : target_(std::move(target)), candidates_(std::move(candidates)) {}

  // A socket that is connecting to the next candidate; Unavailable, naming the target, when none is left.
  Result<UniqueFd> next();
  // 0: connected; EINPROGRESS: not yet; another errno: failed.
  int progress(int fd);

 private:
  std::string target_;
  std::vector<SocketAddress> candidates_;
  size_t next_ = 0;
  int last_errno_ = ECONNREFUSED;
};

// A connected socket. Blocks up to the deadline.
Result<UniqueFd> dial(const std::string& target, std::vector<SocketAddress> candidates, TimeNs deadline);

}  // namespace rrpc::provider
