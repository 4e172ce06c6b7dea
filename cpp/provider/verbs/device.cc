#include "provider/verbs/device.h"

#include "provider/verbs/adapter.h"
#include "provider/verbs/address.h"
#include "provider/verbs/cm_connector.h"
#include "provider/verbs/cm_listener.h"
#include "provider/verbs/completion_queue.h"
#include "provider/verbs/queue_pair.h"
#include "provider/verbs/region.h"
#include "provider/verbs/socket_connector.h"
#include "provider/verbs/socket_listener.h"

namespace rrpc::provider::verbs {
namespace {

// How it connects: CmConnector and CmListener, or SocketConnector and SocketListener.
template <typename ConnectorType, typename ListenerType>
class VerbsDevice final : public Device {
 public:
  explicit VerbsDevice(std::string_view name) : name_(name) {}

  std::string_view name() const override { return name_; }
  std::vector<std::map<std::string, std::string>> describe() override { return Adapters::process().describe(); }

  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override {
    if (range.address == nullptr && range.length_bytes > 0) return invalid_argument("cannot register a null address");
    return std::unique_ptr<MemoryRegion>(std::make_unique<VerbsRegion>(range));
  }

  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t) override {
    return std::make_unique<VerbsCompletionQueue>();
  }

  Result<std::unique_ptr<Listener>> listen(const std::string& text, const ListenOptions& options) override {
    RRPC_ASSIGN_OR_RETURN(const Address address, parse_verbs_address(text));
    return ListenerType::create(address, options);
  }

  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& text, const QueuePairConfig& config,
                                          TimeNs deadline) override {
    RRPC_ASSIGN_OR_RETURN(const Address address, parse_verbs_address(text));
    RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Connector> connector, ConnectorType::open(address, deadline));
    return VerbsQueuePair::create(cq, config, std::move(connector));
  }

 private:
  const std::string_view name_;
};

}  // namespace

std::unique_ptr<Device> create_cm_device() { return std::make_unique<VerbsDevice<CmConnector, CmListener>>("verbs"); }

std::unique_ptr<Device> create_socket_device() {
  return std::make_unique<VerbsDevice<SocketConnector, SocketListener>>("verbs+tcp");
}

}  // namespace rrpc::provider::verbs
