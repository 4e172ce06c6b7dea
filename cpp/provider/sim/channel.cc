#include "provider/sim/channel.h"

#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

void Channel::send(Message message) {
  if (!from_->alive || severed_) return;
  in_flight_.push_back(std::move(message));
  schedule_arrival();
}

void Channel::schedule_arrival() {
  last_arrival_ = std::max(last_arrival_, fabric_.events.now() + fabric_.message_delay());
  fabric_.events.at(last_arrival_, [self = shared_from_this()] { self->arrive(); });
}

void Channel::arrive() {
  if (!fabric_.link_up(from_, to_)) {
    ++held_up_count_;
    return;
  }
  Message message = std::move(in_flight_.front());
  in_flight_.pop_front();
  SimQueuePair* destination = fabric_.queue_pair(to_number_);
  if (destination != nullptr && to_->alive && !severed_) message(*destination);
}

void Channel::resume() {
  if (!fabric_.link_up(from_, to_)) return;
  for (; held_up_count_ > 0; --held_up_count_) schedule_arrival();
}

}  // namespace rrpc::provider::sim
