#include "driver/admissions.h"

#include <utility>

namespace rrpc::driver {

bool Admissions::full() const {
  std::lock_guard lock(mutex_);
  return half_open_.size() >= handshakes_max_;
}

void Admissions::begin(const ConnectionRef& connection, TimeNs now) {
  std::lock_guard lock(mutex_);
  half_open_.emplace(connection->id(), HalfOpen{connection, now});
}

bool Admissions::establish(Connection& connection) {
  std::lock_guard lock(mutex_);
  const auto it = half_open_.find(connection.id());
  if (it == half_open_.end()) return true;
  if (established_ >= connections_max_) return false;
  half_open_.erase(it);
  ++established_;
  connection.counted = true;
  return true;
}

void Admissions::end(Connection& connection) {
  std::lock_guard lock(mutex_);
  half_open_.erase(connection.id());
  if (std::exchange(connection.counted, false)) --established_;
}

ConnectionRef Admissions::take_oldest(TimeNs now, TimeNs age_min, TimeNs& may_go_at) {
  may_go_at = 0;
  std::lock_guard lock(mutex_);
  while (!half_open_.empty()) {
    const auto oldest = half_open_.begin();
    may_go_at = oldest->second.since + age_min;
    if (now < may_go_at) return nullptr;
    ConnectionRef connection = oldest->second.connection.lock();
    half_open_.erase(oldest);
    if (connection != nullptr) return connection;
  }
  return nullptr;
}

}  // namespace rrpc::driver
