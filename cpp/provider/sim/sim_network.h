// A network in memory: seeded, single-threaded, with a virtual clock and a fault plan. Everything above provider.h can
// be run on it through thousands of schedules, and a seed that fails replays.
//
// Nothing happens between calls of step() or run_until(); poll() only hands over what is visible now. The network
// outlives every object made from it. Addresses are any text ("server:1").
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "provider/provider.h"
#include "provider/sim/fault_plan.h"

namespace rrpc::provider::sim {

class Fabric;

class SimNetwork {
 public:
  explicit SimNetwork(uint64_t seed, FaultPlan plan = {});
  ~SimNetwork();

  // Devices of the same host name share their host's fate.
  std::unique_ptr<Device> create_device(const std::string& host_name);

  TimeNs now() const;
  TimeNs next_event_time() const;  // kNever when none is pending
  // Carries out the next event, at its time; false when none is pending.
  bool step();
  // All events up to `time`; the clock ends there.
  void run_until(TimeNs time);
  void run_for(TimeNs duration) { run_until(deadline_after(now(), duration)); }
  // Runs everything there is, at most `events_max` of it; false if that was not all.
  bool run_until_idle(size_t events_max = 1'000'000);
  // Runs the test's own action amid the network's events: a kill, a revocation, a cancel at a random moment.
  void schedule(TimeNs delay, std::function<void()> action);

  // Run when a queue pair has a completion or another state, and with 0 when somebody waits to be accepted: for tests
  // with too many to poll them all.
  void on_news(std::function<void(uint32_t qp_number)> tell);

  // The plan may be changed while running; limits_max matters to queue pairs made afterwards.
  FaultPlan& plan();

  // Without a goodbye. Its objects may still be destroyed, and say nothing more. Peers are told as the plan has it.
  void kill_host(const std::string& host_name);
  // While cut, what is sent between two hosts waits, in order; heal() lets it through.
  void cut(const std::string& host_a, const std::string& host_b);
  void heal(const std::string& host_a, const std::string& host_b);

  // What the layers above did wrong by the contract. Tests expect none.
  const std::vector<std::string>& violations() const;
  void clear_violations();

  void record_trace(bool on);
  const std::vector<std::string>& trace() const;

 private:
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace rrpc::provider::sim
