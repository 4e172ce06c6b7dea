#include "endpoint/counters.h"

#include <mutex>
#include <unordered_set>

#include "base/of_process.h"

namespace rrpc::endpoint {
namespace {

struct Open {
  std::mutex mutex;
  std::unordered_set<const ConnectionCounters*> connections;
};

void add(const Counters& what, Counters& sum) {
#define RRPC_COUNTER_ADDED(name, meaning) count(sum.name, what.name.load(std::memory_order_relaxed));
  RRPC_COUNTERS(RRPC_COUNTER_ADDED)
#undef RRPC_COUNTER_ADDED
}

}  // namespace

Counters& counters() {
  static Counters instance;
  return instance;
}

ConnectionCounters::ConnectionCounters() {
  Open& open = of_process<Open>();
  std::lock_guard lock(open.mutex);
  open.connections.insert(this);
}

// A forked child has none of its parent's.
ConnectionCounters::~ConnectionCounters() {
  Open& open = of_process<Open>();
  std::lock_guard lock(open.mutex);
  if (open.connections.erase(this) > 0) add(*this, counters());
}

void add_totals(Counters& sum) {
  Open& open = of_process<Open>();
  std::lock_guard lock(open.mutex);
  add(counters(), sum);
  for (const ConnectionCounters* connection : open.connections) add(*connection, sum);
}

int64_t total(std::atomic<int64_t> Counters::* counter) {
  Counters sum;
  add_totals(sum);
  return sum.*counter;
}

}  // namespace rrpc::endpoint
