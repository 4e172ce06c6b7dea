// Where threads run and where memory lies, on machines with several NUMA nodes. Without libnuma, which not every
// machine with them has.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <vector>

#include "base/result.h"

namespace rrpc {

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  // those of its processors that this process may use; not empty
};

// Has the thread run on these processors alone, from now on.
Status run_on(pthread_t thread, const std::vector<int>& cpus);

// Has the kernel take the pages of a range from this node as long as that has some, from others after that. `memory` is
// at a page's beginning. Pages that are there already stay where they are.
Status prefer_node(std::byte* memory, size_t length_bytes, int node);

}  // namespace rrpc
