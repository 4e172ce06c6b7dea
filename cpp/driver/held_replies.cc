#include "driver/held_replies.h"

#include <mutex>
#include <utility>

#include "driver/engine.h"

namespace rrpc::driver {

void HeldReplies::ring() {
  const size_t count = std::exchange(count_, 0);
  for (size_t i = 0; i < count; ++i) {
    const ConnectionRef connection = std::exchange(connections_.at(i), nullptr);
    if (connection->belongs_to_parent()) continue;
    std::lock_guard lock(connection->mutex);
    connection->session().endpoint().ring();
    connection->engine->settle(connection, now_ns());
  }
}

}  // namespace rrpc::driver
