#include "driver/stream.h"

#include <utility>

namespace rrpc::driver {

// What a call to the session may leave behind: a connection to be polled once more.
void Stream::settle() {
  if (engine_->needs_settling(*connection_)) engine_->settle(connection_, now_ns());
}

template <typename Work>
Stream::Outcome Stream::locked(bool patient, Status& failure, Work work) {
  if (belongs_to_parent()) {
    failure = failed_precondition("this stream belongs to the parent process; connect again after fork");
    return Outcome::kFailed;
  }
  std::unique_lock lock(connection_->mutex, std::defer_lock);
  if (patient)
    lock.lock();
  else if (!lock.try_lock() || Engine::needs_settling(*connection_))
    return Outcome::kBusy;
  const Outcome outcome = work(connection_->session().streams());
  settle();
  return outcome;
}

void Stream::ring() {
  Status failure;
  (void)locked(false, failure, [&](rpc::Streams&) {
    connection_->session().send_held();
    return Outcome::kDone;
  });
}

Stream::Outcome Stream::try_send(rpc::OutgoingItem& item, bool patient, Status& failure, bool more) {
  return locked(patient, failure, [&](rpc::Streams& streams) {
    if (patient && more) engine_->warm(connection_);
    const bool may_wait = !patient && more && engine_->polls_soon(*connection_);
    if (!patient && !streams.can_send_at_once(stream_, item, may_wait)) return Outcome::kBusy;
    const endpoint::Endpoint::Holding holding(connection_->session().endpoint(), may_wait);
    Result<bool> sent = streams.send(stream_, item, may_wait);
    // Credits and room come with what the peer says: for want of them this thread polls itself, if it may wait.
    if (patient && sent.ok() && (!*sent || !rpc::Streams::flushed(stream_))) {
      const TimeNs now = now_ns();
      if (connection_->session().progress(now) > 0) connection_->last_active.store(now, std::memory_order_relaxed);
      if (!*sent) sent = streams.send(stream_, item);
    }
    if (!sent.ok()) {
      failure = sent.status();
      return Outcome::kFailed;
    }
    room_seen_ = stream_->room_changes();
    return *sent ? Outcome::kDone : Outcome::kNotYet;
  });
}

Stream::Outcome Stream::try_receive(size_t count, std::vector<rpc::Item>& items, bool patient, Status& failure) {
  return locked(patient, failure, [&](rpc::Streams& streams) {
    if (!patient && !stream_->readable()) return Outcome::kBusy;
    streams.take(stream_, count, items);
    if (!items.empty()) return Outcome::kDone;
    if (stream_->ended() && !stream_->ended_with().ok()) {
      failure = stream_->ended_with();
      return Outcome::kFailed;
    }
    if (stream_->wants_memory()) return Outcome::kWantsMemory;
    items_seen_ = stream_->item_changes();
    return stream_->exhausted() || stream_->ended() ? Outcome::kDone : Outcome::kNotYet;
  });
}

void Stream::land_by_hand() {
  Status failure;
  (void)locked(true, failure, [&](rpc::Streams& streams) {
    streams.land_by_hand(stream_);
    return Outcome::kDone;
  });
}

std::vector<size_t> Stream::wanted() {
  std::lock_guard lock(connection_->mutex);
  return rpc::Streams::wanted(stream_);
}

Status Stream::land(std::vector<endpoint::Buffer> memory) {
  Status failure;
  (void)locked(true, failure, [&](rpc::Streams& streams) {
    failure = streams.land(stream_, std::move(memory));
    return Outcome::kDone;
  });
  return failure;
}

WaitResult Stream::wait(const std::function<uint32_t()>& changes, uint32_t seen, TimeNs deadline,
                        const std::atomic<bool>& interrupt) {
  bool counted = false;
  const WaitResult result = Waiter(*engine_, connection_, stream_.get(), std::min(deadline, deadline_), interrupt)
                                .wait([&] { return changes() != seen; },
                                      [&] {
                                        ++stream_->sleepers;
                                        counted = true;
                                      });
  if (counted) --stream_->sleepers;
  if (result != WaitResult::kTimeout || now_ns() < deadline_) return result;
  if (call_ != nullptr) {
    cancel(call_->deadline_passed());
  } else {
    std::lock_guard lock(connection_->mutex);
    connection_->session().streams().end(stream_, deadline_exceeded("the call's deadline has passed"));
  }
  return WaitResult::kDone;
}

WaitResult Stream::wait_for_room(TimeNs deadline, const std::atomic<bool>& interrupt) {
  return wait([this] { return stream_->room_changes(); }, room_seen_, deadline, interrupt);
}

WaitResult Stream::wait_for_items(TimeNs deadline, const std::atomic<bool>& interrupt) {
  return wait([this] { return stream_->item_changes(); }, items_seen_, deadline, interrupt);
}

void Stream::notify(const std::shared_ptr<LoopQueue>& queue, const LoopItemRef& news, rpc::Awaited what) {
  queue->await(*news, connection_, engine_);
  std::lock_guard lock(connection_->mutex);
  if (stream_->has_come(what))
    queue->push(news);
  else
    stream_->on_change.emplace_back([queue, news] { queue->push(news); });
}

Status Stream::send_initial_metadata(Bytes metadata) {
  Status failure;
  (void)locked(true, failure, [&](rpc::Streams& streams) {
    failure = streams.send_initial_metadata(stream_, metadata);
    return Outcome::kDone;
  });
  return failure;
}

std::optional<std::string> Stream::initial_metadata() {
  std::lock_guard lock(connection_->mutex);
  return stream_->initial_metadata();
}

void Stream::finish() {
  Status failure;
  (void)locked(true, failure, [&](rpc::Streams& streams) {
    streams.finish(stream_);
    return Outcome::kDone;
  });
}

Result<uint32_t> Stream::ask_delivered() {
  Status failure;
  uint32_t sequence = 0;
  (void)locked(true, failure, [&](rpc::Streams& streams) {
    sequence = streams.ask_delivered(stream_);
    return Outcome::kDone;
  });
  if (!failure.ok()) return failure;
  return sequence;
}

Stream::Outcome Stream::delivered(uint32_t sequence, Status& failure) {
  return locked(true, failure, [&](rpc::Streams&) {
    if (stream_->ended() && !stream_->ended_with().ok() && !stream_->delivered(sequence)) {
      failure = stream_->ended_with();
      return Outcome::kFailed;
    }
    room_seen_ = stream_->room_changes();
    return stream_->ended() || stream_->delivered(sequence) ? Outcome::kDone : Outcome::kNotYet;
  });
}

bool Stream::peer_finished() {
  std::lock_guard lock(connection_->mutex);
  return stream_->peer_finished();
}

bool Stream::answered() {
  std::lock_guard lock(connection_->mutex);
  return stream_->answered();
}

std::pair<std::string, std::string> Stream::addresses() {
  std::lock_guard lock(connection_->mutex);
  const provider::QueuePair& qp = connection_->session().endpoint().queue_pair();
  return {qp.local_description(), qp.peer_description()};
}

namespace {

// The stream owns it until the end; so it doesn't own the stream.
void tell_at_end(rpc::Stream* stream, std::function<void()> tell) {
  if (stream->ended()) return tell();
  stream->on_change.emplace_back([stream, tell = std::move(tell)] { tell_at_end(stream, tell); });
}

}  // namespace

void Stream::on_end(std::function<void()> tell) {
  std::lock_guard lock(connection_->mutex);
  tell_at_end(stream_.get(), std::move(tell));
}

void Stream::cancel(Status why) {
  if (call_ == nullptr || belongs_to_parent()) return;
  std::lock_guard lock(connection_->mutex);
  connection_->session().client().cancel(call_, std::move(why));
  settle();
}

}  // namespace rrpc::driver
