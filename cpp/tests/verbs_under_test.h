// The verbs provider, loaded as the driver loads it, over the adapters that the environment names: RRPC_VERBS_RXE and
// RRPC_VERBS_SIW are addresses of a RoCE and an iWARP adapter, RRPC_VERBS_CASES a list of rxe, rxe_socket and siw (all
// when unset), RRPC_TEST_TIME_SCALE a factor for waits on a slow machine.
#pragma once

#include <cstdlib>
#include <string>

#include "conformance.h"
#include "driver/plugin.h"

namespace rrpc::provider::conformance {

inline std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

inline int number_from_environment(const char* name, int otherwise) {
  return static_cast<int>(std::strtol(from_environment(name, std::to_string(otherwise).c_str()).c_str(), nullptr, 10));
}

inline VerbsDevices& verbs_devices() {
  static VerbsDevices* const devices = [] {
    auto* opened = new VerbsDevices();
    const Status status = driver::open_verbs(*opened);
    if (!status.ok()) {
      std::fprintf(stderr, "no verbs: %s\n", status.to_string().c_str());
      std::exit(1);
    }
    return opened;
  }();
  return *devices;
}

enum class VerbsCase { kRoce, kRoceBySocket, kIwarp };

class VerbsUnderTest final : public ProviderUnderTest {
 public:
  explicit VerbsUnderTest(VerbsCase which) : which_(which) {}

  Device& server_device() override { return device(); }
  Device& client_device() override { return device(); }
  std::string listen_address() override { return host() + ":0"; }
  std::string vacant_address() override { return host() + ":1"; }
  bool requests_wait() const override { return true; }
  bool sends_are_acknowledged() const override { return !iwarp(); }
  bool writes_are_acknowledged() const override { return !iwarp(); }
  bool refusals_are_named() const override { return !iwarp(); }
  bool reads_need_a_right() const override { return !iwarp(); }
  bool reads_outlast_their_posting() const override { return iwarp(); }
  TimeNs patience() const override { return 10 * kSecond * number_from_environment("RRPC_TEST_TIME_SCALE", 3); }

 private:
  bool iwarp() const { return which_ == VerbsCase::kIwarp; }
  Device& device() const { return which_ == VerbsCase::kRoceBySocket ? *verbs_devices().socket : *verbs_devices().cm; }
  std::string host() const {
    return iwarp() ? from_environment("RRPC_VERBS_SIW", "10.9.1.1") : from_environment("RRPC_VERBS_RXE", "10.9.0.1");
  }

  const VerbsCase which_;
};

// Those that RRPC_VERBS_CASES names.
std::vector<ProviderFactory> verbs_cases();

}  // namespace rrpc::provider::conformance
