#include "provider/sim/fabric.h"

#include "provider/sim/channel.h"
#include "provider/sim/queue_pair.h"

namespace rrpc::provider::sim {

Fabric::~Fabric() { RRPC_CHECK(queue_pairs_.empty() && listeners_.empty(), "the network outlives what it connects"); }

Host* Fabric::host(const std::string& name) {
  std::unique_ptr<Host>& slot = hosts_[name];
  if (!slot) slot = std::make_unique<Host>(Host{name});
  return slot.get();
}

uint32_t Fabric::add_queue_pair(SimQueuePair* queue_pair) {
  queue_pairs_[++last_number_] = queue_pair;
  return last_number_;
}

SimQueuePair* Fabric::queue_pair(uint32_t number) const {
  auto it = queue_pairs_.find(number);
  return it == queue_pairs_.end() ? nullptr : it->second;
}

std::vector<uint32_t> Fabric::queue_pair_numbers() const {
  std::vector<uint32_t> numbers;
  for (const auto& [number, queue_pair] : queue_pairs_) numbers.push_back(number);
  return numbers;
}

SimListener* Fabric::listener(const std::string& address) const {
  auto it = listeners_.find(address);
  return it == listeners_.end() ? nullptr : it->second;
}

std::shared_ptr<Channel> Fabric::create_channel(Host* from, Host* to, uint32_t to_number) {
  auto channel = std::make_shared<Channel>(*this, from, to, to_number);
  if (channels_.size() >= 2 * channels_tidied_) {
    std::erase_if(channels_, [](const auto& weak) { return weak.expired(); });
    channels_tidied_ = channels_.size() + 1;
  }
  channels_.push_back(channel);
  return channel;
}

void Fabric::heal(const Host* a, const Host* b) {
  cut_links_.erase(link(a, b));
  for (const auto& weak : channels_)
    if (auto channel = weak.lock()) channel->resume();
}

void Fabric::kill(Host* host) {
  if (!host->alive) return;
  host->alive = false;
  for (uint32_t number : queue_pair_numbers()) {
    SimQueuePair* each = queue_pair(number);
    if (each->host() == host) each->detach_sends();
    if (each->peer_host() == host) each->notice_loss();
  }
}

TimeNs Fabric::message_delay() {
  if (rng.chance(plan.late_probability)) return rng.between(plan.delay_ns_max, plan.late_delay_ns_max);
  return rng.between(plan.delay_ns_min, plan.delay_ns_max);
}

void Fabric::violation(const Host* host, const std::string& text) {
  if (!host->alive) return;  // nobody runs there any more: what a test does is take the remains apart
  violations.push_back(std::to_string(events.now()) + " ns, " + host->name + ": " + text);
  if (tracing) trace_lines.push_back("VIOLATION " + violations.back());
}

void Fabric::trace(uint32_t qp_number, std::string_view what, uint64_t id) {
  if (!tracing) return;
  trace_lines.push_back(std::to_string(events.now()) + " qp" + std::to_string(qp_number) + " " + std::string(what) +
                        " " + std::to_string(id));
}

}  // namespace rrpc::provider::sim
