#include "driver/devices.h"

#include <pthread.h>

#include <atomic>
#include <fstream>
#include <mutex>

#include "provider/shm/shm_device.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::driver {
namespace {

struct Devices {
  DeviceEntry shm{provider::create_shm_device()};
  DeviceEntry tcp{provider::create_tcp_device()};
};

// Never destroyed: connections may outlive static destruction. A forked child makes its own.
std::atomic<Devices*> g_devices{nullptr};
std::mutex g_mutex;
std::atomic<int> g_fork_generation{0};

void register_fork_handler() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    g_fork_generation.fetch_add(1);
    g_devices.store(nullptr);
    new (&g_mutex) std::mutex();
  });
  (void)registered;
}

Devices& devices() {
  if (Devices* existing = g_devices.load()) return *existing;
  std::lock_guard lock(g_mutex);
  register_fork_handler();
  if (g_devices.load() == nullptr) g_devices.store(new Devices());
  return *g_devices.load();
}

}  // namespace

Result<DeviceEntry*> find_device(const std::string& scheme) {
  if (scheme == "shm") return &devices().shm;
  if (scheme == "tcp") return &devices().tcp;
  return unavailable(scheme + ":// can't be had: this build has no verbs provider; use rrpc://, shm:// or tcp://");
}

void evict_owner(uint64_t owner_id) {
  if (Devices* existing = g_devices.load()) {
    existing->shm.registrations.evict_owner(owner_id);
    existing->tcp.registrations.evict_owner(owner_id);
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
