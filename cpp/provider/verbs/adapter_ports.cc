// An adapter's ports and GIDs.
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "provider/verbs/adapter.h"
#include "provider/verbs/errors.h"

namespace rrpc::provider::verbs {

static const char* state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initialising";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "deferred";
    default:
      return "unknown";
  }
}

static uint32_t mtu_bytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << static_cast<unsigned>(mtu) : 0;
}

Result<ibv_port_attr> Adapter::active_port(uint8_t number) const {
  const std::string port = "port " + std::to_string(number) + " of " + name_;
  if (number == 0 || number > attributes_.phys_port_cnt) {
    return invalid_argument(name_ + " has no port " + std::to_string(number) + ", its ports are 1 to " +
                            std::to_string(attributes_.phys_port_cnt));
  }
  if (failed()) return unavailable("the adapter " + name_ + " failed or was taken away");
  ibv_port_attr attributes{};
  if (const int error_number = ibv_query_port(context_, number, &attributes); error_number != 0) {
    return verbs_error(error_number, "querying " + port);
  }
  if (attributes.state == IBV_PORT_ACTIVE) return attributes;
  const bool ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  return unavailable(port + " is " + state_name(attributes.state) +
                     (ethernet ? ": bring its network interface up (ip link set ... up)"
                               : ": check its cable and that a subnet manager runs"));
}

static std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

static bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t byte) { return byte == 0; });
}

// Kernels before 5.10 tell of types and interfaces only in sysfs.
static std::vector<Gid> gids_from_sysfs(ibv_context* context, uint8_t port, int count) {
  std::vector<Gid> gids;
  const std::string folder =
      std::string(context->device->ibdev_path) + "/ports/" + std::to_string(port) + "/gid_attrs/";
  for (int index = 0; index < count; ++index) {
    Gid gid;
    gid.index = index;
    if (ibv_query_gid(context, port, index, &gid.raw) != 0 || is_zero(gid.raw)) continue;
    gid.roce_v2 = first_line(folder + "types/" + std::to_string(index)) == "RoCE v2";
    gid.network = first_line(folder + "ndevs/" + std::to_string(index));
    gids.push_back(std::move(gid));
  }
  return gids;
}

static std::vector<Gid> gids_from_table(const std::vector<ibv_gid_entry>& entries, uint8_t port) {
  std::vector<Gid> gids;
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num != port || is_zero(entry.gid)) continue;
    Gid gid;
    gid.index = static_cast<int>(entry.gid_index);
    gid.raw = entry.gid;
    gid.roce_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    char network[IF_NAMESIZE] = {};
    if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, network) != nullptr) gid.network = network;
    gids.push_back(std::move(gid));
  }
  return gids;
}

std::vector<Gid> Adapter::gids(uint8_t port) const {
  ibv_port_attr attributes{};
  if (ibv_query_port(context_, port, &attributes) != 0) return {};
  const auto table_length = static_cast<size_t>(std::max(attributes.gid_tbl_len, 0));
  std::vector<ibv_gid_entry> entries(table_length * attributes_.phys_port_cnt);
  const ssize_t count = ibv_query_gid_table(context_, entries.data(), entries.size(), 0);
  if (count >= 0) entries.resize(static_cast<size_t>(count));
  std::vector<Gid> gids =
      count >= 0 ? gids_from_table(entries, port) : gids_from_sysfs(context_, port, static_cast<int>(table_length));
  for (Gid& gid : gids) gid.text = gid_text(gid.raw);
  std::stable_sort(gids.begin(), gids.end(),
                   [](const Gid& a, const Gid& b) { return a.roce_v2 != b.roce_v2 ? a.roce_v2 : a.index < b.index; });
  return gids;
}

std::map<std::string, std::string> Adapter::describe(uint8_t port) const {
  std::map<std::string, std::string> fields{{"name", name_},
                                            {"port", std::to_string(port)},
                                            {"transport", iwarp_ ? "iWARP" : "InfiniBand"},
                                            {"exposure", has_windows_ ? "memory window" : "registration per call"},
                                            {"odp", on_demand_ ? "yes" : "no"},
                                            {"srq", attributes_.max_srq > 0 ? "yes" : "no"}};
  ibv_port_attr attributes{};
  if (const int error_number = ibv_query_port(context_, port, &attributes); error_number != 0) {
    fields["why_not"] = verbs_error(error_number, "querying the port").message();
    return fields;
  }
  const bool ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (ethernet && !iwarp_) fields["transport"] = "RoCE";
  fields["state"] = state_name(attributes.state);
  fields["link_layer"] = ethernet ? "Ethernet" : "InfiniBand";
  fields["active_mtu"] = std::to_string(mtu_bytes(attributes.active_mtu));
  fields["lid"] = std::to_string(attributes.lid);
  std::string list;
  for (const Gid& gid : gids(port)) {
    list += (list.empty() ? "" : ", ") + std::to_string(gid.index) + ": " + gid.text;
    if (gid.roce_v2) list += " (RoCE v2)";
  }
  fields["gids"] = list;
  if (auto active = active_port(port); !active.ok()) fields["why_not"] = active.status().message();
  return fields;
}

}  // namespace rrpc::provider::verbs
