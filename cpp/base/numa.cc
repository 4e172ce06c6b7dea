#include "base/numa.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <string>

namespace rrpc {

Status run_on(pthread_t thread, const std::vector<int>& cpus) {
  const int count = 1 + *std::ranges::max_element(cpus);
  const size_t set_bytes = CPU_ALLOC_SIZE(count);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* made) { CPU_FREE(made); });
  CPU_ZERO_S(set_bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), set_bytes, set.get());
  const int error = pthread_setaffinity_np(thread, set_bytes, set.get());
  return error == 0 ? Status() : Status::from_errno(error, "binding a thread to the processors of numa_node");
}

Status prefer_node(std::byte* memory, size_t length_bytes, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED of <linux/mempolicy.h>
  constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask(static_cast<size_t>(node) / kWordBits + 1);
  mask.back() = 1ul << (static_cast<size_t>(node) % kWordBits);
  // The kernel reads one bit fewer than it is told.
  if (syscall(SYS_mbind, memory, length_bytes, kPreferred, mask.data(), mask.size() * kWordBits + 1, 0) == 0) return {};
  const int error = errno;
  const std::string what = "numa_node " + std::to_string(node) + ": mbind: " + std::strerror(error);
  if (error == EPERM) return failed_precondition(what + "; containers often forbid it: allow CAP_SYS_NICE");
  return failed_precondition(what + "; this process may have no memory of that node (Mems_allowed_list)");
}

}  // namespace rrpc
