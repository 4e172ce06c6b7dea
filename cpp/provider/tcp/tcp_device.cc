#include "provider/tcp/tcp_device.h"

#include <atomic>

#include "provider/socket.h"
#include "provider/tcp/completion_queue.h"
#include "provider/tcp/listener.h"
#include "provider/tcp/queue_pair.h"

namespace rrpc::provider {
namespace {

class TcpMemoryRegion final : public MemoryRegion {
 public:
  TcpMemoryRegion(const MemoryRange& range, uint32_t lkey) : MemoryRegion(range, lkey) {}
};

class TcpDevice final : public Device {
 public:
  std::string_view name() const override { return "tcp"; }

  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override {
    if (range.address == nullptr && range.length_bytes > 0) return invalid_argument("cannot register a null address");
    RRPC_RETURN_IF_ERROR(check_host_memory(range));
    return std::unique_ptr<MemoryRegion>(std::make_unique<TcpMemoryRegion>(range, ++last_lkey_));
  }

  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t) override {
    return std::make_unique<tcp::TcpCompletionQueue>();
  }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) override {
    return tcp::TcpListener::create(address, options);
  }

  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                          const QueuePairConfig& config, TimeNs deadline) override {
    RRPC_ASSIGN_OR_RETURN(auto candidates, resolve(address, ResolveFor::kConnect, deadline));
    return std::unique_ptr<QueuePair>(std::make_unique<tcp::TcpQueuePair>(
        static_cast<tcp::TcpCompletionQueue&>(cq), config, Dialler(address, std::move(candidates)), address));
  }

 private:
  std::atomic<uint32_t> last_lkey_{0};
};

}  // namespace

std::unique_ptr<Device> create_tcp_device() { return std::make_unique<TcpDevice>(); }

}  // namespace rrpc::provider
