#include "provider/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

namespace rrpc::provider {

static Status bad_address(const std::string& address, const char* why) {
  return invalid_argument("bad address '" + address + "': " + why + "; write host:port or [ipv6]:port");
}

Result<HostPort> parse_address(const std::string& address) {
  HostPort parsed;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return bad_address(address, "no port");
  parsed.host = address.substr(0, colon);
  parsed.port = address.substr(colon + 1);
  if (parsed.host.starts_with('[')) {
    if (!parsed.host.ends_with(']')) return bad_address(address, "unbalanced brackets");
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (parsed.host.empty()) return bad_address(address, "empty brackets");
  } else if (parsed.host.find_first_of(":]") != std::string::npos) {
    return bad_address(address, "an IPv6 address needs brackets");
  }
  unsigned port = 0;
  const char* end = parsed.port.data() + parsed.port.size();
  const auto [stop, error] = std::from_chars(parsed.port.data(), end, port);
  if (error != std::errc() || stop != end || port > 65535) return bad_address(address, "the port isn't in 0..65535");
  return parsed;
}

uint16_t SocketAddress::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);  // where sockaddr_in6 has it
}

std::string SocketAddress::to_string() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
    return std::string(host) + ":" + std::to_string(port());
  }
  if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {  // one who came to a listener of both families
      inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], host, sizeof(host));
      return std::string(host) + ":" + std::to_string(port());
    }
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    return "[" + std::string(host) + "]:" + std::to_string(port());
  }
  return "unknown";
}

namespace {

struct Lookup {
  int error = 0;
  std::vector<SocketAddress> addresses;
};

Lookup look_up(const HostPort& target, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Lookup lookup;
  lookup.error = getaddrinfo(target.host.empty() ? nullptr : target.host.c_str(), target.port.c_str(), &hints, &list);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    lookup.addresses.push_back(address);
  }
  if (list != nullptr) freeaddrinfo(list);
  return lookup;
}

// The resolver can't be interrupted, so a name is looked up by a thread that outlives an expired deadline.
Result<Lookup> look_up_name(const HostPort& target, int flags, TimeNs deadline) {
  auto promise = std::make_shared<std::promise<Lookup>>();
  std::future<Lookup> future = promise->get_future();
  try {
    std::thread([promise, target, flags] { promise->set_value(look_up(target, flags)); }).detach();
  } catch (const std::system_error&) {
    return resource_exhausted("cannot start a thread to look up '" + target.host + "'");
  }
  if (deadline == kNever) return future.get();
  const auto left = std::chrono::nanoseconds(std::max<TimeNs>(0, deadline - now_ns()));
  if (future.wait_for(left) == std::future_status::ready) return future.get();
  return deadline_exceeded("looking up the host name '" + target.host + "' took too long");
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const std::string& address, ResolveFor purpose, TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(const HostPort target, parse_address(address));
  const bool connecting = purpose == ResolveFor::kConnect;
  if (connecting && target.host.empty()) return bad_address(address, "no host to connect to");
  if (connecting && target.port == "0") return bad_address(address, "port 0 can't be connected to");
  const int flags = connecting ? 0 : AI_PASSIVE;
  Lookup lookup = look_up(target, flags | AI_NUMERICHOST);
  if (lookup.error != 0) {
    RRPC_ASSIGN_OR_RETURN(lookup, look_up_name(target, flags, deadline));
  }
  if (lookup.error != 0 || lookup.addresses.empty()) {
    return Status(StatusCode::kUnavailable, "cannot resolve '" + target.host + "' in address '" + address +
                                                "': " + gai_strerror(lookup.error) + "; check the host name");
  }
  // A listener at :: takes both families.
  if (target.host.empty())
    std::ranges::stable_partition(lookup.addresses, [](const SocketAddress& a) { return a.is_ipv6(); });
  if (connecting && target.host == "::") {
    Lookup other = look_up({"0.0.0.0", target.port}, AI_NUMERICHOST);
    lookup.addresses.insert(lookup.addresses.end(), other.addresses.begin(), other.addresses.end());
  }
  return std::move(lookup.addresses);
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(fd, address.get(), &address.length) != 0) address = {};
  return address;
}

SocketAddress peer_address(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getpeername(fd, address.get(), &address.length) != 0) address = {};
  return address;
}

void set_connection_options(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static Status listen_error(const std::string& address, int error_number) {
  const std::string what = "cannot listen on " + address;
  Status status = Status::from_errno(error_number, what);
  if (error_number == EADDRINUSE)
    return {status.code(), status.message() + "; choose another port, or 0 for a free one"};
  if (error_number == EADDRNOTAVAIL) {
    return invalid_argument(status.message() + "; use an address of this host, or 0.0.0.0 for all");
  }
  if (error_number == EACCES) return {status.code(), status.message() + "; ports below 1024 need privileges"};
  return status;
}

Result<UniqueFd> listen_on(const SocketAddress& where, const std::string& address, int backlog) {
  UniqueFd fd(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return listen_error(address, errno);
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (where.is_ipv6()) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));  // :: takes both families
  if (::bind(fd.get(), where.get(), where.length) != 0) return listen_error(address, errno);
  if (::listen(fd.get(), backlog) != 0) return listen_error(address, errno);
  return fd;
}

Result<UniqueFd> hold_port(const SocketAddress& where) {
  UniqueFd fd(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd.get(), where.get(), where.length) != 0) {
    return Status::from_errno(errno, "cannot hold the port of " + where.to_string());
  }
  return fd;
}

Result<UniqueFd> Dialler::next() {
  while (next_ < candidates_.size()) {
    const SocketAddress& candidate = candidates_[next_++];
    UniqueFd fd(::socket(candidate.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      last_errno_ = errno;
      continue;
    }
    set_connection_options(fd.get());
    if (::connect(fd.get(), candidate.get(), candidate.length) == 0 || errno == EINPROGRESS) return fd;
    last_errno_ = errno;
  }
  const Status status = Status::from_errno(last_errno_, "cannot connect to " + target_);
  const bool refused = last_errno_ == ECONNREFUSED;
  const StatusCode code = status.code() == StatusCode::kResourceExhausted ? status.code() : StatusCode::kUnavailable;
  return Status(code, status.message() + (refused ? "; is the server running there?" : "; check address and network"));
}

int Dialler::progress(int fd) {
  pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) <= 0) return EINPROGRESS;
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) last_errno_ = error;
  return error;
}

Result<UniqueFd> dial(const std::string& target, std::vector<SocketAddress> candidates, TimeNs deadline) {
  Dialler dialler(target, std::move(candidates));
  while (true) {
    RRPC_ASSIGN_OR_RETURN(UniqueFd fd, dialler.next());
    int progress = dialler.progress(fd.get());
    while (progress == EINPROGRESS) {
      const TimeNs left = deadline - now_ns();
      if (left <= 0) return deadline_exceeded("connecting to " + target + " took too long; is the host up?");
      pollfd ready{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      (void)::poll(&ready, 1, static_cast<int>(std::min<TimeNs>(left / kMillisecond + 1, INT_MAX)));
      progress = dialler.progress(fd.get());
    }
    if (progress == 0) return fd;
  }
}

}  // namespace rrpc::provider
