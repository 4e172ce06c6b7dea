// The process's adapters.
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "provider/verbs/adapter.h"
#include "provider/verbs/errors.h"
#include "provider/verbs/fork.h"
#include "provider/verbs/local_addresses.h"

namespace rrpc::provider::verbs {

static constexpr TimeNs kRefreshAfter = 1 * kSecond;
static constexpr char kLoadDriver[] =
    "load its driver (modprobe mlx5_ib, irdma, ...) or make a software one (modprobe rdma_rxe; rdma link add rxe0 type "
    "rxe netdev eth0)";

Adapters& Adapters::process() {
  static std::mutex mutex;
  static Adapters* adapters = nullptr;
  static uint32_t generation = 0;
  prepare_for_fork();
  std::lock_guard lock(mutex);
  if (adapters == nullptr || generation != fork_generation()) {
    adapters = new Adapters;  // the parent's are left as they are: nothing of them may be touched
    generation = fork_generation();
  }
  return *adapters;
}

Adapters::Entry* Adapters::find(const std::string& name) {
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (entry.name == name && (found == nullptr || entry.usable())) found = &entry;
  }
  return found;
}

void Adapters::adopt(ibv_context* context, bool owns_context) {
  const std::string name = ibv_get_device_name(context->device);
  auto opened = Adapter::open(context, owns_context);
  Entry* entry = find(name);
  if (entry == nullptr || entry->adapter != nullptr) entry = &entries_.emplace_back();
  entry->name = name;
  entry->context = opened.ok() || !owns_context ? context : nullptr;
  entry->why_not = opened.status();
  entry->adapter = opened.ok() ? std::move(opened).value() : nullptr;
}

// librdmacm opens each adapter once for the process: its queue pairs and ours must be of the same context. In a forked
// child its contexts are the parent's.
void Adapters::refresh_from_rdma_cm() {
  if (fork_generation() != 0) return;
  int count = 0;
  ibv_context** contexts = rdma_get_devices(&count);
  if (contexts == nullptr) return;
  bool kept = false;
  for (ibv_context** context = contexts; *context != nullptr; ++context) {
    const bool known = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.context == *context && entry.adapter != nullptr;
    });
    if (known) continue;
    adopt(*context, false);
    kept = true;
  }
  // Freeing the list lets librdmacm close what nothing of its own uses.
  if (!kept) rdma_free_devices(contexts);
}

void Adapters::refresh_from_devices(ibv_device** devices, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name = ibv_get_device_name(devices[i]);
    if (const Entry* entry = find(name); entry != nullptr && (entry->usable() || entry->context != nullptr)) continue;
    errno = 0;
    if (ibv_context* context = ibv_open_device(devices[i]); context != nullptr) {
      adopt(context, true);
      continue;
    }
    const Status why = verbs_error(errno != 0 ? errno : EIO, "opening the adapter " + name);
    Entry* entry = find(name);
    if (entry == nullptr) entry = &entries_.emplace_back();
    entry->name = name;
    entry->why_not = why;
  }
}

void Adapters::refresh() {
  refreshed_ = now_ns();
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) return;
  if (count > 0) refresh_from_rdma_cm();
  refresh_from_devices(devices, count);
  ibv_free_device_list(devices);
}

Status Adapters::why_none() {
  for (const Entry& entry : entries_) {
    if (!entry.usable() && !entry.why_not.ok()) return entry.why_not;
  }
  if (!entries_.empty()) return unavailable("the adapter " + entries_.front().name + " failed or was taken away");
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  if (error || devices == std::filesystem::directory_iterator()) {
    return unavailable(std::string("this machine has no RDMA adapter: ") + kLoadDriver);
  }
  const std::string name = devices->path().filename();
  return unavailable("the adapter " + name + " can't be reached: there is no /dev/infiniband/uverbs* for it; " +
                     "modprobe ib_uverbs, and in a container pass /dev/infiniband in");
}

Status Adapters::any_usable() {
  std::lock_guard lock(mutex_);
  if (std::none_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.usable(); })) refresh();
  Status port_down;
  for (const Entry& entry : entries_) {
    if (!entry.usable()) continue;
    for (uint8_t port = 1; port <= entry.adapter->attributes().phys_port_cnt; ++port) {
      auto active = entry.adapter->active_port(port);
      if (active.ok()) return {};
      if (port_down.ok()) port_down = active.status();
    }
  }
  return port_down.ok() ? why_none() : port_down;
}

Result<Adapter*> Adapters::by_context(ibv_context* context) {
  std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const Entry& entry : entries_) {
      if (entry.context != context) continue;
      if (entry.adapter != nullptr) return entry.adapter.get();
      if (attempt == 1) return entry.why_not;
    }
    if (attempt == 0) refresh();
  }
  if (fork_generation() != 0) {
    return failed_precondition(
        "this process was forked from one that may have used RDMA, and librdmacm can't start anew in it: start it with "
        "spawn or forkserver instead of fork, or use verbs+tcp://");
  }
  return internal_error("librdmacm chose an adapter that it doesn't list");
}

Result<Adapter*> Adapters::by_name(const std::string& name) {
  std::lock_guard lock(mutex_);
  const Entry* entry = find(name);
  if (entry == nullptr || !entry->usable()) {
    refresh();
    entry = find(name);
  }
  if (entry != nullptr && entry->usable()) return entry->adapter.get();
  if (entry != nullptr && !entry->why_not.ok()) return entry->why_not;
  if (entries_.empty()) return why_none();
  std::string names;
  for (const Entry& other : entries_) names += (names.empty() ? "" : ", ") + other.name;
  return Status(StatusCode::kNotFound, "there is no adapter " + name + "; there are: " + names);
}

std::vector<Adapter*> Adapters::all() {
  std::lock_guard lock(mutex_);
  if (refreshed_ == 0 || now_ns() - refreshed_ > kRefreshAfter) refresh();
  std::vector<Adapter*> usable;
  for (const Entry& entry : entries_) {
    if (entry.usable()) usable.push_back(entry.adapter.get());
  }
  return usable;
}

std::vector<std::map<std::string, std::string>> Adapters::describe() {
  std::lock_guard lock(mutex_);
  refresh();
  const LocalAddresses addresses = local_addresses();
  std::vector<std::map<std::string, std::string>> ports;
  for (const Entry& entry : entries_) {
    if (entry.adapter == nullptr) {
      ports.push_back({{"name", entry.name}, {"why_not", entry.why_not.message()}});
      continue;
    }
    for (uint8_t port = 1; port <= entry.adapter->attributes().phys_port_cnt; ++port) {
      ports.push_back(entry.adapter->describe(port));
      const auto here = addresses.find({entry.name, port});
      if (here == addresses.end()) continue;
      for (const std::string& address : here->second) {
        std::string& list = ports.back()["addresses"];
        list += (list.empty() ? "" : ",") + address;
      }
    }
  }
  return ports;
}

}  // namespace rrpc::provider::verbs
