#include "driver/devices.h"

#include <atomic>
#include <fstream>
#include <mutex>
#include <utility>

#include "base/at_fork.h"
#include "driver/plugin.h"
#include "provider/shm/shm_device.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::driver {
namespace {

// Where there are adapters; never unmade.
struct VerbsEntries {
  explicit VerbsEntries(provider::VerbsDevices opened)
      : cm("verbs", std::move(opened.cm)), socket("verbs+tcp", std::move(opened.socket)) {}
  DeviceEntry cm;
  DeviceEntry socket;
};

struct Devices {
  DeviceEntry shm{"shm", provider::create_shm_device()};
  DeviceEntry tcp{"tcp", provider::create_tcp_device()};
  std::atomic<VerbsEntries*> verbs{nullptr};
};

// Never destroyed: connections may outlive static destruction. A forked child makes its own.
std::atomic<Devices*> g_devices{nullptr};
std::mutex g_mutex;
std::mutex g_verbs_mutex;
std::atomic<int> g_fork_generation{0};

const AtFork kDevicesAtFork{[] {
  g_fork_generation.fetch_add(1);
  g_devices.store(nullptr);
  new (&g_mutex) std::mutex();
  new (&g_verbs_mutex) std::mutex();
}};

Devices& devices() {
  if (Devices* existing = g_devices.load()) return *existing;
  std::lock_guard lock(g_mutex);
  if (g_devices.load() == nullptr) g_devices.store(new Devices());
  return *g_devices.load();
}

// Opening may take a while (each adapter is tried), so callers of other schemes don't wait for it.
Result<VerbsEntries*> verbs_entries() {
  Devices& ours = devices();
  if (VerbsEntries* existing = ours.verbs.load()) return existing;
  std::lock_guard lock(g_verbs_mutex);
  if (VerbsEntries* existing = ours.verbs.load()) return existing;
  provider::VerbsDevices opened;
  RRPC_RETURN_IF_ERROR(open_verbs(opened));
  ours.verbs.store(new VerbsEntries(std::move(opened)));
  return ours.verbs.load();
}

}  // namespace

Result<DeviceEntry*> find_device(const std::string& scheme) {
  if (scheme == "shm") return &devices().shm;
  if (scheme == "tcp") return &devices().tcp;
  const auto entries = verbs_entries();
  if (entries.ok()) return scheme == "verbs" ? &(*entries)->cm : &(*entries)->socket;
  return Status(entries.status().code(), scheme + ":// can't be had: " + entries.status().message());
}

std::vector<std::map<std::string, std::string>> describe_adapters() {
  if (const auto entries = verbs_entries(); entries.ok()) return (*entries)->cm.device->describe();
  std::lock_guard lock(g_verbs_mutex);
  provider::VerbsDevices unusable;
  (void)open_verbs(unusable);
  if (unusable.cm == nullptr) return {};
  return unusable.cm->describe();
}

void evict_owner(uint64_t owner_id) {
  Devices* existing = g_devices.load();
  if (existing == nullptr) return;
  existing->shm.registrations.evict_owner(owner_id);
  existing->tcp.registrations.evict_owner(owner_id);
  if (VerbsEntries* entries = existing->verbs.load()) {
    entries->cm.registrations.evict_owner(owner_id);
    entries->socket.registrations.evict_owner(owner_id);
  }
}

const std::string& host_identity() {
  static const std::string identity = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    std::getline(file, text);
    return text;
  }();
  return identity;
}

int fork_generation() { return g_fork_generation.load(std::memory_order_relaxed); }

}  // namespace rrpc::driver
