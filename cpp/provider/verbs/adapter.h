// One adapter (an opened ibv device): what it can do, its ports and GIDs, what queue pairs of it share.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"

namespace rrpc::provider::verbs {

class ProtectionDomain;
class VerbsQueuePair;

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
  // (FailedPrecondition with the reason if not), and starts to watch its events. `context` is librdmacm's own where that
  // has one, else opened here (`owns_context`).
  static Result<std::unique_ptr<Adapter>> open(ibv_context* context, bool owns_context);
  ~Adapter();

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  bool iwarp() const { return iwarp_; }
  bool has_windows() const { return has_windows_; }  // type 2, tried

  // Unavailable when the port is not active, InvalidArgument when there is none of that number.
  Result<ibv_port_attr> active_port(uint8_t number) const;
  // Those that aren't zero, RoCE v2 first, then by index.
  std::vector<Gid> gids(uint8_t port) const;

  // Where windows keep exposures to one peer: one for all. Else: a new one for each queue pair.
  Result<std::shared_ptr<ProtectionDomain>> protection_domain();

  // Asynchronous events fail the queue pairs they concern (VerbsQueuePair::doom, from the watching thread).
  void attach(VerbsQueuePair* queue_pair);
  void detach(VerbsQueuePair* queue_pair);  // when this returns the watcher is done with it

  std::map<std::string, std::string> describe(uint8_t port) const;

 private:
  friend class AsyncWatcher;
  Adapter() = default;

  std::string name_;
  ibv_context* context_ = nullptr;
  bool owns_context_ = false;
  ibv_device_attr attributes_{};
  bool iwarp_ = false;
  bool has_windows_ = false;
  std::mutex mutex_;
  std::weak_ptr<ProtectionDomain> shared_domain_;
  std::vector<VerbsQueuePair*> queue_pairs_;
};

// The process's adapters. Opened when first asked for; those that appear later are found by the next question.
class Adapters {
 public:
  static Adapters& process();  // never destroyed

  // OK when there is at least one usable adapter, else one line that says why not and what to do.
  Status any_usable();
  Result<Adapter*> by_context(ibv_context* context);   // of an rdma_cm_id
  Result<Adapter*> by_name(const std::string& name);   // NotFound lists what there is
  std::vector<Adapter*> all();                         // usable ones
  std::vector<std::map<std::string, std::string>> describe();  // each port of each device, unusable ones with "why_not"
};

}  // namespace rrpc::provider::verbs
