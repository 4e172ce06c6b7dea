// One direction of one connection: messages arrive in the order sent, each after a delay of its own.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "provider/sim/fabric.h"

namespace rrpc::provider::sim {

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  using Message = std::function<void(SimQueuePair&)>;

  Channel(Fabric& fabric, Host* from, Host* to, uint32_t to_number)
      : fabric_(fabric), from_(from), to_(to), to_number_(to_number) {}

  void send(Message message);
  // Lost for good, without a word to anyone.
  void sever() { severed_ = true; }
  // After the link was healed: what waited sets off again.
  void resume();

 private:
  void schedule_arrival();
  void arrive();

  Fabric& fabric_;
  Host* from_;
  Host* to_;
  uint32_t to_number_;
  std::deque<Message> in_flight_;
  size_t held_up_count_ = 0;  // of in_flight_: reached the cut link
  TimeNs last_arrival_ = 0;
  bool severed_ = false;
};

}  // namespace rrpc::provider::sim
