#include "provider/sim/sim_network.h"

#include "provider/sim/device.h"

namespace rrpc::provider::sim {

SimNetwork::SimNetwork(uint64_t seed, FaultPlan plan) : fabric_(std::make_unique<Fabric>(seed, plan)) {}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<Device> SimNetwork::create_device(const std::string& host_name) {
  return std::make_unique<SimDevice>(*fabric_, fabric_->host(host_name));
}

TimeNs SimNetwork::now() const { return fabric_->events.now(); }
TimeNs SimNetwork::next_event_time() const { return fabric_->events.next_time(); }
bool SimNetwork::step() { return fabric_->events.step(); }
void SimNetwork::run_until(TimeNs time) { fabric_->events.run_until(time); }

bool SimNetwork::run_until_idle(size_t events_max) {
  for (size_t i = 0; i < events_max; ++i)
    if (!step()) return true;
  return next_event_time() == kNever;
}

void SimNetwork::schedule(TimeNs delay, std::function<void()> action) {
  fabric_->events.after(delay, std::move(action));
}

void SimNetwork::on_news(std::function<void(uint32_t qp_number)> tell) { fabric_->on_news = std::move(tell); }

FaultPlan& SimNetwork::plan() { return fabric_->plan; }
void SimNetwork::kill_host(const std::string& host_name) { fabric_->kill(fabric_->host(host_name)); }

void SimNetwork::cut(const std::string& host_a, const std::string& host_b) {
  fabric_->cut(fabric_->host(host_a), fabric_->host(host_b));
}

void SimNetwork::heal(const std::string& host_a, const std::string& host_b) {
  fabric_->heal(fabric_->host(host_a), fabric_->host(host_b));
}

const std::vector<std::string>& SimNetwork::violations() const { return fabric_->violations; }
void SimNetwork::clear_violations() { fabric_->violations.clear(); }
void SimNetwork::record_trace(bool on) { fabric_->tracing = on; }
const std::vector<std::string>& SimNetwork::trace() const { return fabric_->trace_lines; }

}  // namespace rrpc::provider::sim
