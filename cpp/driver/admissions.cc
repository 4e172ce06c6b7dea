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

bool Admissions::establish(Connection& connection, const ConnectionRef& introducer, TimeNs leave_at) {
  std::lock_guard lock(mutex_);
  const auto it = half_open_.find(connection.id());
  if (it == half_open_.end()) return true;
  const bool takes_place = introducer != nullptr && introducer->counted;
  if (!takes_place && established_ >= connections_max_) return false;
  half_open_.erase(it);
  connection.counted = true;
  if (!takes_place) {
    ++established_;
    return true;
  }
  introducer->counted = false;
  introducer->leave_at = leave_at;
  connection.place_of = introducer;
  half_open_.emplace(introducer->id(), HalfOpen{introducer, 0});  // the first to make place for others
  return true;
}

void Admissions::end(Connection& connection) {
  ConnectionRef introducer;  // let go of without the mutex
  std::lock_guard lock(mutex_);
  half_open_.erase(connection.id());
  if (!std::exchange(connection.counted, false)) return;
  introducer = connection.place_of.lock();
  if (introducer != nullptr && half_open_.erase(introducer->id()) > 0) {
    introducer->counted = true;
    introducer->leave_at = kNever;
  } else {
    --established_;
  }
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
