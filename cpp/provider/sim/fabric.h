// What all simulated objects share: clock, dice, hosts, registered memory, and the way from a number to an
// object that may be gone by the time an event asks for it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "provider/sim/event_queue.h"
#include "provider/sim/fault_plan.h"
#include "provider/sim/region_table.h"
#include "provider/sim/rng.h"

namespace rrpc::provider::sim {

class Channel;
class SimListener;
class SimQueuePair;

struct Host {
  std::string name;
  bool alive = true;
};

class Fabric {
 public:
  Fabric(uint64_t seed, const FaultPlan& fault_plan) : plan(fault_plan), rng(seed) {}
  ~Fabric();

  Host* host(const std::string& name);
  uint32_t add_queue_pair(SimQueuePair* queue_pair);
  void remove_queue_pair(uint32_t number) { queue_pairs_.erase(number); }
  SimQueuePair* queue_pair(uint32_t number) const;
  std::vector<uint32_t> queue_pair_numbers() const;
  void add_listener(const std::string& address, SimListener* listener) { listeners_[address] = listener; }
  void remove_listener(const std::string& address) { listeners_.erase(address); }
  SimListener* listener(const std::string& address) const;
  std::shared_ptr<Channel> create_channel(Host* from, Host* to, uint32_t to_number);

  bool link_up(const Host* a, const Host* b) const { return !cut_links_.contains(link(a, b)); }
  void cut(const Host* a, const Host* b) { cut_links_.insert(link(a, b)); }
  void heal(const Host* a, const Host* b);
  void kill(Host* host);

  TimeNs message_delay();
  TimeNs completion_delay() { return rng.between(plan.completion_delay_ns_min, plan.completion_delay_ns_max); }

  // Whoever polls the queue pair (0: a listener) would find something.
  void tell(uint32_t qp_number) {
    if (on_news) on_news(qp_number);
  }
  void violation(const Host* host, const std::string& text);
  // One line: when, whose, what, which request.
  void trace(uint32_t qp_number, std::string_view what, uint64_t id = 0);

  FaultPlan plan;
  Rng rng;
  EventQueue events;
  RegionTable regions;
  std::vector<std::string> violations;
  std::vector<std::string> trace_lines;
  bool tracing = false;
  std::function<void(uint32_t qp_number)> on_news;

 private:
  using Link = std::pair<const Host*, const Host*>;
  static Link link(const Host* a, const Host* b) { return std::less<>()(a, b) ? Link{a, b} : Link{b, a}; }

  std::map<std::string, std::unique_ptr<Host>> hosts_;
  std::map<uint32_t, SimQueuePair*> queue_pairs_;
  std::map<std::string, SimListener*> listeners_;
  std::vector<std::weak_ptr<Channel>> channels_;
  size_t channels_tidied_ = 0;  // so many were left
  std::set<Link> cut_links_;
  uint32_t last_number_ = 0;
};

}  // namespace rrpc::provider::sim
