// The one explicit list of providers, and what belongs to each in this process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "endpoint/endpoint.h"
#include "provider/provider.h"

namespace rrpc::driver {

struct DeviceEntry {
  DeviceEntry(const char* its_scheme, std::unique_ptr<provider::Device> d)
      : scheme(its_scheme), device(std::move(d)), registrations(*device, endpoint::Pool::process(), kPinnedBytesMax) {}
  endpoint::DeviceContext context() { return {*device, endpoint::Pool::process(), registrations}; }

  static constexpr size_t kPinnedBytesMax = size_t{4} << 30;
  const char* const scheme;
  std::unique_ptr<provider::Device> device;
  endpoint::RegistrationCache registrations;
};

constexpr const char* kSchemes[] = {"shm", "tcp", "verbs", "verbs+tcp"};

// The device for one of kSchemes; else one line that says why there is none and what to do. Those of verbs are loaded
// when first asked for; a refusal is looked into anew each time, since an adapter may appear.
Result<DeviceEntry*> find_device(const std::string& scheme);
// The adapters that rdma-core knows here, usable or not, as Device::describe() gives them; none without verbs.
std::vector<std::map<std::string, std::string>> describe_adapters();
// Forgets cached registrations of memory that is about to go.
void evict_owner(uint64_t owner_id);

// Tells hosts (strictly: boots of a kernel) apart.
const std::string& host_identity();

// Counts forks: what was made under another number belongs to a parent process.
int fork_generation();

}  // namespace rrpc::driver
