// The streams of one call as the threads of its end use them: any number of them, at either end.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/connection.h"
#include "driver/loop_queue.h"
#include "driver/waiter.h"

namespace rrpc::driver {

class Stream {
 public:
  enum class Outcome : uint8_t {
    kDone,
    kNotYet,       // no room; or nothing has come
    kBusy,         // another thread is at the connection, and this one was not to wait for it
    kFailed,       // see failure()
    kWantsMemory,  // before anything more comes: see wanted()
  };

  Stream(std::shared_ptr<Engine> engine, ConnectionRef connection, rpc::StreamRef stream, TimeNs deadline,
         rpc::ClientCallRef call = nullptr)
      : engine_(std::move(engine)),
        connection_(std::move(connection)),
        stream_(std::move(stream)),
        deadline_(deadline),
        call_(std::move(call)) {}

  const rpc::ClientCallRef& call() const { return call_; }  // null at the answering end
  Engine& engine() { return *engine_; }
  bool belongs_to_parent() const { return connection_->belongs_to_parent(); }
  bool ended() const { return stream_->ended(); }

  // `patient`: waits for the connection's mutex, which takes moments; never with the GIL. `more`: the next item is
  // likely to follow at once, and this one may share its doorbell; ring() if it doesn't follow.
  Outcome try_send(rpc::OutgoingItem& item, bool patient, Status& failure, bool more = false);
  // Sends what waits for a doorbell, unless another thread is at the connection, which then does.
  void ring();
  // Up to `count` items that are here. kDone with none: the peer's items have ended.
  Outcome try_receive(size_t count, std::vector<rpc::Item>& items, bool patient, Status& failure);
  // The buffers of items land in memory of the user's from now on: when try_receive() gives kWantsMemory, land() takes
  // that for the first item that waits for it, in the lengths that wanted() tells.
  void land_by_hand();
  std::vector<size_t> wanted();
  Status land(std::vector<endpoint::Buffer> memory);
  // After try_send() or try_receive() gave kNotYet: polls, then sleeps, until it may be worth another try.
  // kTimeout: `deadline` has passed; at the call's own deadline the call ends, and another try says so.
  WaitResult wait_for_room(TimeNs deadline, const std::atomic<bool>& interrupt);
  WaitResult wait_for_items(TimeNs deadline, const std::atomic<bool>& interrupt);
  // In the loop's thread: pushes `news` once, when that may have come.
  void notify(const std::shared_ptr<LoopQueue>& queue, const LoopItemRef& news, rpc::Awaited what);

  Status send_initial_metadata(Bytes metadata);
  // None: none has come, or none yet.
  std::optional<std::string> initial_metadata();
  // No more items of this end.
  void finish();
  // Returns the number of items sent so far, and asks the peer to say when it has them.
  Result<uint32_t> ask_delivered();
  // kDone: the peer has the items before this number, or the call has ended well.
  Outcome delivered(uint32_t sequence, Status& failure);
  bool peer_finished();
  // At the calling end: the reply is here, so no item can be sent any more; the peer's last items may not be, yet.
  bool answered();
  // Of the connection: this end's address and the peer's, as QueuePair describes them.
  std::pair<std::string, std::string> addresses();
  // Calls `tell` once the call has ended for this end, at once if it has; with the connection's mutex.
  void on_end(std::function<void()> tell);
  // Of the calling end: gives the call up, unless it has ended.
  void cancel(Status why);

 private:
  template <typename Work>
  Outcome locked(bool patient, Status& failure, Work work);
  WaitResult wait(const std::function<uint32_t()>& changes, uint32_t seen, TimeNs deadline,
                  const std::atomic<bool>& interrupt);
  void settle();

  const std::shared_ptr<Engine> engine_;
  const ConnectionRef connection_;
  const rpc::StreamRef stream_;
  const TimeNs deadline_;  // of the call
  const rpc::ClientCallRef call_;
  // What had changed when there was no room, or nothing to take.
  std::atomic<uint32_t> room_seen_{0};
  std::atomic<uint32_t> items_seen_{0};
};

}  // namespace rrpc::driver
