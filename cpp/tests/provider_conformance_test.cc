// The conformance suite on every provider.
#include <unistd.h>

#include "conformance.h"
#include "conformance_connect.h"
#include "conformance_memory.h"
#include "conformance_messages.h"
#include "provider/shm/shm_device.h"
#include "provider/sim/sim_network.h"
#include "provider/tcp/tcp_device.h"

namespace rrpc::provider::conformance {
namespace {

// tcp: a SEND is done once the kernel has it.
class TcpUnderTest final : public ProviderUnderTest {
 public:
  Device& server_device() override { return *device_; }
  Device& client_device() override { return *device_; }
  std::string listen_address() override { return "127.0.0.1:0"; }
  std::string vacant_address() override { return "127.0.0.1:1"; }
  bool sends_are_acknowledged() const override { return false; }
  bool polls_move_bytes() const override { return true; }

 private:
  std::unique_ptr<Device> device_ = create_tcp_device();
};

// sim: without its scribbling, since the suite looks at memory that the contract leaves undefined.
class SimUnderTest final : public ProviderUnderTest {
 public:
  Device& server_device() override { return *server_; }
  Device& client_device() override { return *client_; }
  std::string listen_address() override { return "server:1"; }
  std::string vacant_address() override { return "nowhere:1"; }
  void settle() override { network_.step(); }
  bool has_wait_handles() const override { return false; }

 private:
  sim::SimNetwork network_{1, {.scribble = false}};
  std::unique_ptr<Device> server_ = network_.create_device("server");
  std::unique_ptr<Device> client_ = network_.create_device("client");
};

class ShmUnderTest final : public ProviderUnderTest {
 public:
  Device& server_device() override { return *server_; }
  Device& client_device() override { return *client_; }
  std::string listen_address() override { return "/tmp/rrpc-conformance-" + std::to_string(getpid()) + ".sock"; }
  std::string vacant_address() override { return "/tmp/rrpc-conformance-nobody.sock"; }
  bool polls_move_bytes() const override { return true; }

 private:
  std::unique_ptr<Device> server_ = create_shm_device();
  std::unique_ptr<Device> client_ = create_shm_device();
};

template <typename Provider>
ProviderFactory factory(const char* name) {
  return {name, [] { return std::make_unique<Provider>(); }};
}

// A provider joins here.
const auto kProviders =
    ::testing::Values(factory<TcpUnderTest>("tcp"), factory<ShmUnderTest>("shm"), factory<SimUnderTest>("sim"));

INSTANTIATE_TEST_SUITE_P(Provider, ConformanceTest, kProviders, factory_name);
INSTANTIATE_TEST_SUITE_P(Provider, TrespassTest, kProviders, factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
