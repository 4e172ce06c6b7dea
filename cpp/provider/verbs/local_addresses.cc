#include "provider/verbs/local_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>

#include "provider/verbs/cm_channel.h"

namespace rrpc::provider::verbs {
namespace {

struct FreeInterfaces {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

// Empty for one that isn't looked at.
std::string address_text(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_UP) == 0) return {};
  if ((interface.ifa_flags & IFF_LOOPBACK) != 0) return {};
  char text[INET6_ADDRSTRLEN] = {};
  if (interface.ifa_addr->sa_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(interface.ifa_addr);
    return inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
  }
  if (interface.ifa_addr->sa_family != AF_INET6) return {};
  const auto* address = reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr);
  if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) return {};
  return inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof(text));
}

}  // namespace

LocalAddresses local_addresses() {
  LocalAddresses found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, FreeInterfaces> owner(list);
  auto channel = CmChannel::create();
  if (!channel.ok()) return found;
  for (const ifaddrs* interface = list; interface != nullptr; interface = interface->ifa_next) {
    const std::string text = address_text(*interface);
    if (text.empty()) continue;
    const auto id = create_cm_id(*channel);
    // Refused where no adapter has the address.
    if (!id.ok() || rdma_bind_addr(id->get(), interface->ifa_addr) != 0 || (*id)->verbs == nullptr) continue;
    found[{ibv_get_device_name((*id)->verbs->device), (*id)->port_num}].push_back(text);
  }
  return found;
}

}  // namespace rrpc::provider::verbs
