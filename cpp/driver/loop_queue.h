// What an event loop (asyncio's, say) is told of: calls of its that have ended, and other news of the core. One queue
// for each loop.
//
// While anything is awaited the loop polls the connections itself, never for long; where nothing comes for a
// connection's `spin` it is left to the engine's thread, and the loop may sleep on the queue's descriptor. Waking a
// loop costs two wake-ups then; while it polls, none.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "driver/connection.h"
#include "driver/engine.h"
#include "driver/spinner.h"

namespace rrpc::driver {

class LoopQueue;

// What a loop is told of. deliver() comes once for each push, in the loop's thread.
class LoopItem {
 public:
  virtual ~LoopItem() = default;
  virtual void deliver(void* to) = 0;

 private:
  friend class LoopQueue;
  // The connection that it is awaited from, if any; set in the loop's thread.
  Connection* from_ = nullptr;
};
using LoopItemRef = std::shared_ptr<LoopItem>;

// A call that ends into its loop's queue.
class LoopCall : public LoopItem, public rpc::ClientCall, public std::enable_shared_from_this<LoopCall> {
 public:
  explicit LoopCall(std::shared_ptr<LoopQueue> queue) : queue_(std::move(queue)) {
    on_done = [this] { end(); };
  }
  LoopQueue& queue() { return *queue_; }

 private:
  void end();

  const std::shared_ptr<LoopQueue> queue_;
};

class LoopQueue : public std::enable_shared_from_this<LoopQueue> {
 public:
  LoopQueue();
  ~LoopQueue() { close(); }
  LoopQueue(const LoopQueue&) = delete;
  LoopQueue& operator=(const LoopQueue&) = delete;

  // Readable when a sleeping loop should poll; below 0 where no descriptors were left for it.
  int fd() const { return wake_fd_.get(); }
  bool belongs_to_parent() const { return fork_generation_ != fork_generation(); }

  // For the loop's own thread.

  // The loop polls the connection for the item, which will be pushed once. The peer is to fetch so many bytes first.
  void await(LoopItem& item, const ConnectionRef& connection, std::shared_ptr<Engine> engine, size_t fetched_bytes = 0);
  // The loop polls the connection until it has been quiet for its `spin`.
  void follow(const ConnectionRef& connection, std::shared_ptr<Engine> engine);
  // Polls once, or for some microseconds where the loop does nothing else and `patient` allows it, and appends what has
  // come. False: there is nothing to poll for, or nothing came for a while, and the loop may sleep on fd() until there
  // is something new to await or follow.
  bool poll(std::vector<LoopItemRef>& items, bool patient = true);
  // Number of items that are awaited and haven't come out of poll().
  size_t awaited() const { return awaited_; }
  // Whether poll() said so last, and nothing new has come to await or follow since.
  bool resting() const { return resting_; }

  // For any thread, also with the mutex of a connection held.
  void push(LoopItemRef item);
  // The connection, armed since the loop left it, has something: the loop follows it.
  void stir(const ConnectionRef& connection, std::shared_ptr<Engine> engine);
  // What comes from now on is dropped.
  void close();

 private:
  struct Watched {
    ConnectionRef connection;
    std::shared_ptr<Engine> engine;
    size_t awaited = 0;
    TimeNs follow_until = 0;
    TimeNs last_news = 0;  // or when some is expected

    void heard(TimeNs at) { last_news = std::max(last_news, at); }
    bool active = false;
  };

  struct Stirred {
    ConnectionRef connection;
    std::shared_ptr<Engine> engine;
  };

  Watched& watch(const ConnectionRef& connection, std::shared_ptr<Engine> engine);
  void poll_active(TimeNs now);
  bool poll_one(Watched& watched, TimeNs now);
  bool take(std::vector<LoopItemRef>& items, bool may_sleep);
  template <typename Add>
  void tell(Add add);
  void settle_accounts(const std::vector<LoopItemRef>& items);

  const int fork_generation_;
  UniqueFd wake_fd_;
  std::unordered_map<Connection*, Watched> watched_;
  std::vector<Watched*> active_;
  size_t awaited_ = 0;
  TimeNs polled_until_ = 0;
  bool resting_ = true;
  Spinner spinner_;

  std::mutex mutex_;  // a leaf
  std::vector<LoopItemRef> items_;
  std::vector<Stirred> stirred_;
  std::atomic<bool> has_items_{false};
  bool asleep_ = true;  // and to be woken
  bool told_ = false;
  bool closed_ = false;
};

}  // namespace rrpc::driver
