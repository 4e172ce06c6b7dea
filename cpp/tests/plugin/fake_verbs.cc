// Stands in for the verbs provider in tests of the driver: loaded like it, moves its bytes over TCP. The environment's
// RRPC_FAKE_VERBS makes it refuse or fail: "refused", "unreachable", "flaky" (every other dial fails), "addressless".
#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "provider/plugin.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::provider {
namespace {

std::string mood() {
  const char* text = std::getenv("RRPC_FAKE_VERBS");
  return text == nullptr ? "" : text;
}

// The address without the options that may follow it.
Result<std::string> place_of(const std::string& address) {
  const std::string place = address.substr(0, address.find('?'));
  const std::string asked = address.substr(place.size());
  if (!asked.empty() && asked != "?device=fake0") return invalid_argument("there is no adapter for '" + asked + "'");
  return place;
}

class FakeVerbs final : public Device {
 public:
  explicit FakeVerbs(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }

  std::vector<std::map<std::string, std::string>> describe() override {
    std::map<std::string, std::string> adapter{{"name", "fake0"}, {"port", "1"}, {"transport", "RoCE"}};
    if (mood() != "addressless") adapter["addresses"] = "198.51.100.1,127.0.0.1";
    if (mood() == "refused") adapter["why_not"] = "port 1 is down";
    return {adapter};
  }
  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override {
    return tcp_->register_memory(range);
  }
  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t depth) override {
    return tcp_->create_completion_queue(depth);
  }
  Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) override {
    RRPC_ASSIGN_OR_RETURN(const std::string place, place_of(address));
    return tcp_->listen(place, options);
  }
  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                          const QueuePairConfig& config, TimeNs deadline) override {
    RRPC_ASSIGN_OR_RETURN(const std::string place, place_of(address));
    const bool fails = mood() == "unreachable" || (mood() == "flaky" && dials_++ % 2 == 0);
    if (fails) return unavailable("no route from fake0 to " + place);
    return tcp_->open(cq, place, config, deadline);
  }

 private:
  const std::string name_;
  std::unique_ptr<Device> tcp_ = create_tcp_device();
  std::atomic<int> dials_{0};
};

}  // namespace
}  // namespace rrpc::provider

extern "C" __attribute__((visibility("default"))) void rrpc_open_verbs(const char* build,
                                                                       rrpc::provider::VerbsDevices* out,
                                                                       rrpc::Status* why) {
  if (std::string(build) != rrpc::provider::kBuildId) *why = rrpc::failed_precondition("another build");
  if (rrpc::provider::mood() == "refused") *why = rrpc::unavailable("fake0: port 1 is down");
  out->cm = std::make_unique<rrpc::provider::FakeVerbs>("verbs");
  out->socket = std::make_unique<rrpc::provider::FakeVerbs>("verbs+tcp");
}
