#include "provider/verbs/fork.h"

#include <infiniband/verbs.h>
#include <pthread.h>

#include <atomic>

namespace rrpc::provider::verbs {

static std::atomic<uint32_t> generation{0};

uint32_t fork_generation() { return generation.load(std::memory_order_relaxed); }

void prepare_for_fork() {
  static const bool prepared = [] {
    if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED) ibv_fork_init();
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    return true;
  }();
  (void)prepared;
}

}  // namespace rrpc::provider::verbs
