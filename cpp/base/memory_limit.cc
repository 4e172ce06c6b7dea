#include "base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace rrpc {
namespace {

// SIZE_MAX where the file is missing or says "max".
size_t limit_in(const std::string& path) {
  std::ifstream file(path);
  size_t bytes = SIZE_MAX;
  return file >> bytes ? bytes : SIZE_MAX;
}

// The lowest limit of a group and its ancestors. In a container the group's path may be the host's and lead nowhere
// here: then the mount's root, which is the container's own group, remains.
size_t lowest_limit(const std::string& mount, std::string group, const std::string& file) {
  size_t lowest = SIZE_MAX;
  for (;;) {
    std::string path = mount;
    path.append(group).append("/").append(file);
    lowest = std::min(lowest, limit_in(path));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return lowest;
    group.resize(slash);
  }
}

bool names_memory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

size_t memory_limit_bytes(const std::string& root) {
  size_t lowest = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:cpu,memory:/path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      lowest = std::min(lowest, lowest_limit(root + "/sys/fs/cgroup", group, "memory.max"));
      lowest = std::min(lowest, lowest_limit(root + "/sys/fs/cgroup/unified", group, "memory.max"));
    } else if (names_memory(controllers)) {
      lowest = std::min(lowest, lowest_limit(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return lowest;
}

}  // namespace rrpc
