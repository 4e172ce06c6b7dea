// The conformance suite on every provider.
#include <unistd.h>

#include "conformance.h"
#include "conformance_connect.h"
#include "conformance_invalidation.h"
#include "conformance_memory.h"
#include "conformance_messages.h"
#include "driver/plugin.h"
#include "provider/shm/shm_device.h"
#include "provider/sim/sim_network.h"
#include "provider/tcp/tcp_device.h"
#include "secured.h"

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

#ifdef RRPC_TEST_CERTIFICATES
// Over TLS: listeners and connections get their certificates here.
class SecuredDevice final : public Device {
 public:
  SecuredDevice()
      : device_(create_tcp_device()),
        server_(driver::open_tls(TlsRole::kServer, driver::testing::test_certificates("server")).value()),
        client_(driver::open_tls(TlsRole::kClient, driver::testing::test_certificates("client")).value()) {}
  std::string_view name() const override { return "tcp"; }
  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override {
    return device_->register_memory(range);
  }
  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t depth) override {
    return device_->create_completion_queue(depth);
  }
  Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) override {
    ListenOptions secured = options;
    secured.tls = server_;
    return device_->listen(address, secured);
  }
  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                          const QueuePairConfig& config, TimeNs deadline) override {
    QueuePairConfig secured = config;
    secured.tls = client_;
    return device_->open(cq, address, secured, deadline);
  }

 private:
  std::unique_ptr<Device> device_;
  std::shared_ptr<TlsContext> server_;
  std::shared_ptr<TlsContext> client_;
};

class TlsUnderTest final : public ProviderUnderTest {
 public:
  Device& server_device() override { return device_; }
  Device& client_device() override { return device_; }
  std::string listen_address() override { return "127.0.0.1:0"; }
  std::string vacant_address() override { return "127.0.0.1:1"; }
  bool sends_are_acknowledged() const override { return false; }
  bool polls_move_bytes() const override { return true; }

 private:
  SecuredDevice device_;
};
#endif

// sim: without its scribbling, since the suite looks at memory that the contract leaves undefined. With `kLikeVerbs`
// its messages are written where they are sent from, and may close keys.
template <bool kLikeVerbs>
class SimUnderTest final : public ProviderUnderTest {
 public:
  Device& server_device() override { return *server_; }
  Device& client_device() override { return *client_; }
  std::string listen_address() override { return "server:1"; }
  std::string vacant_address() override { return "nowhere:1"; }
  void settle() override { network_.step(); }
  bool has_wait_handles() const override { return false; }

 private:
  static sim::FaultPlan plan() {
    sim::FaultPlan plan{.scribble = false};
    plan.limits_max.messages_complete = plan.limits_max.invalidates = kLikeVerbs;
    if (kLikeVerbs) plan.exposure_kind = ExposureKind::kWindow;
    return plan;
  }
  sim::SimNetwork network_{1, plan()};
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
    ::testing::Values(factory<TcpUnderTest>("tcp"), factory<ShmUnderTest>("shm"), factory<SimUnderTest<false>>("sim"),
                      factory<SimUnderTest<true>>("sim_like_verbs")
#ifdef RRPC_TEST_CERTIFICATES
                          ,
                      factory<TlsUnderTest>("tls")
#endif
    );

INSTANTIATE_TEST_SUITE_P(Provider, ConformanceTest, kProviders, factory_name);
INSTANTIATE_TEST_SUITE_P(Provider, TrespassTest, kProviders, factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
