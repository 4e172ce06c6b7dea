// One adapter (an opened ibv device): what it can do, its ports and GIDs, what queue pairs of it share.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace rrpc::provider::verbs {

// Credits see to it that a receive is posted: a sender that finds none has broken the protocol.
constexpr uint8_t kRnrRetryCount = 0;
// An adapter that brings in a page answers "not ready" (an RNR NAK) meanwhile. 7 is without end: as rdma-core's own
// tests of on-demand paging (tests/base.py: RNR_RETRY 7, MIN_RNR_TIMER 12) and UCX (RNR_RETRY_COUNT 7) have it.
constexpr uint8_t kRetryWhilePagesCome = 7;

class ProtectionDomain;
class VerbsQueuePair;
class VerbsSharedReceiveQueue;

struct Gid {
  int index = 0;
  ibv_gid raw{};
  bool roce_v2 = false;
  std::string text;     // "::ffff:10.9.0.1" as inet_ntop gives it
  std::string network;  // the netdev's name, where known
};

class Adapter {
 public:
  // Queries the device, makes a protection domain, completion queue and queue pair to see that it works
  // (FailedPrecondition with the reason if not), and starts to watch its events. `context` is librdmacm's own where
  // that has one, else opened here (`owns_context`: closed at the end, or when this fails).
  static Result<std::unique_ptr<Adapter>> open(ibv_context* context, bool owns_context);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  bool iwarp() const { return iwarp_; }
  bool soft_iwarp() const { return attributes_.vendor_id == kSoftIwarpVendor; }
  // Of type 2, tried. Such an adapter also sends and takes messages that invalidate one: the flag for which
  // probe_windows() looks stands for both.
  bool has_windows() const { return has_windows_; }
  // Which of ibv_wc::wc_flags says that a message has invalidated one. Soft-RoCE gives the kernel's
  // IB_WC_WITH_INVALIDATE, whose bit is another one in libibverbs.
  unsigned invalidation_flag() const {
    return attributes_.vendor_id == kSoftRoceVendor ? IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV;
  }
  // Whether a window's range is held to. Soft-RoCE holds only to the range of the registration below it.
  bool windows_hold_range() const { return attributes_.vendor_id != kSoftRoceVendor; }
  // Whether an event says that a queue pair in the error state takes no more receives of a shared queue. Soft-RoCE's
  // takes none from the moment on in which it is in that state, and says nothing.
  bool tells_last_receive() const { return attributes_.vendor_id != kSoftRoceVendor; }
  bool on_demand() const { return on_demand_; }  // pages of users' arrays are brought in on demand: offered and wanted
  // How often a peer is to send again what this end wasn't ready for, as queue pairs are told.
  uint8_t not_ready_retries() const { return on_demand_ ? kRetryWhilePagesCome : kRnrRetryCount; }
  uint32_t inline_bytes_max() const { return inline_bytes_max_; }  // tried
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Unavailable when the port is not active, InvalidArgument when there is none of that number.
  Result<ibv_port_attr> active_port(uint8_t number) const;
  // Those that aren't zero, RoCE v2 first, then by index.
  std::vector<Gid> gids(uint8_t port) const;

  // Where windows keep exposures to one peer: one for all. Else: a new one for each queue pair.
  Result<std::shared_ptr<ProtectionDomain>> protection_domain();

  // Asynchronous events fail the queue pairs they concern (VerbsQueuePair::doom, from the watching thread).
  void attach(VerbsQueuePair* queue_pair);
  void detach(VerbsQueuePair* queue_pair);  // when this returns the watcher is done with it
  void attach(VerbsSharedReceiveQueue* queue);
  void detach(VerbsSharedReceiveQueue* queue);
  // By the watcher, which acknowledges the event afterwards.
  void handle_event(const ibv_async_event& event, TimeNs now);
  // By the watcher: ends the connections of ports that have been down for longer than a retry lasts. Gives when it is
  // to be called again.
  TimeNs give_up_ports(TimeNs now);

  std::map<std::string, std::string> describe(uint8_t port) const;

 private:
  static constexpr uint32_t kSoftRoceVendor = 0xffffff;
  static constexpr uint32_t kSoftIwarpVendor = 0x626d74;

  Adapter() = default;

  Status query();
  Status probe();
  Status probe_queue_pair(ibv_pd* domain, ibv_cq* completions);
  bool probe_windows(ibv_pd* domain) const;
  template <typename Concerned>
  void doom_where(const Status& reason, Concerned concerned, bool vague = false);
  void end_overrun(const ibv_cq* completions);

  std::string name_;
  ibv_context* context_ = nullptr;
  bool owns_context_ = false;
  ibv_device_attr attributes_{};
  bool iwarp_ = false;
  bool has_windows_ = false;
  bool on_demand_ = false;
  uint32_t inline_bytes_max_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::weak_ptr<ProtectionDomain> shared_domain_;
  std::map<uint8_t, TimeNs> ports_down_;  // until when each may come back; the watcher's
  std::unordered_set<VerbsQueuePair*> queue_pairs_;
  std::unordered_set<VerbsSharedReceiveQueue*> shared_receive_queues_;
};

// The process's adapters. Opened when first asked for; those that appear later are found by the next question. A forked
// child starts anew.
class Adapters {
 public:
  static Adapters& process();  // never destroyed

  // OK when there is at least one usable adapter, else one line that says why not and what to do.
  Status any_usable();
  Result<Adapter*> by_context(ibv_context* context);           // of an rdma_cm_id
  Result<Adapter*> by_name(const std::string& name);           // NotFound lists what there is
  std::vector<Adapter*> all();                                 // usable ones
  std::vector<std::map<std::string, std::string>> describe();  // each port of each device, unusable ones with "why_not"

 private:
  struct Entry {
    std::string name;
    ibv_context* context = nullptr;  // null: closed again, since it was no use
    std::unique_ptr<Adapter> adapter;
    Status why_not;
    bool usable() const { return adapter != nullptr && !adapter->failed(); }
  };

  void refresh();
  void refresh_from_rdma_cm();
  void refresh_from_devices(ibv_device** devices, int count);
  void adopt(ibv_context* context, bool owns_context);
  Entry* find(const std::string& name);
  Status why_none();

  std::mutex mutex_;
  std::vector<Entry> entries_;
  int64_t refreshed_ = 0;
};

}  // namespace rrpc::provider::verbs
