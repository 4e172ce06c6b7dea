#include <sys/stat.h>

#include <cerrno>

#include "provider/shm/listener.h"
#include "provider/shm/shm_device.h"

namespace rrpc::provider {

namespace shm {
namespace {

class ShmDevice : public Device {
 public:
  std::string_view name() const override { return "shm"; }

  Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) override {
    if (range.address == nullptr || range.length_bytes == 0) return invalid_argument("registering no memory");
    if (range.fd >= 0) RRPC_RETURN_IF_ERROR(check_shared_file(range));
    const uint32_t lkey = next_lkey_.fetch_add(1, std::memory_order_relaxed);
    return std::unique_ptr<MemoryRegion>(std::make_unique<ShmRegion>(range, lkey, state_->registry));
  }

  std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t) override {
    return std::make_unique<ShmCompletionQueue>();
  }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) override {
    return ShmListener::create(state_, address, options);
  }

  Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                          const QueuePairConfig& config, TimeNs deadline) override {
    RRPC_ASSIGN_OR_RETURN(std::string path, socket_path(address));
    RRPC_ASSIGN_OR_RETURN(UniqueFd socket, connect_to(path, deadline));
    return ShmQueuePair::create(state_, static_cast<ShmCompletionQueue&>(cq), std::move(socket), config, {});
  }

 private:
  // A peer maps the whole file and reckons with the region's address as its first byte.
  static Status check_shared_file(const MemoryRange& range) {
    struct stat info{};
    if (fstat(range.fd, &info) != 0) return Status::from_errno(errno, "registering shared memory");
    if (static_cast<uint64_t>(info.st_size) != range.length_bytes)
      return invalid_argument("shared memory is registered whole: the file has " + std::to_string(info.st_size) +
                              " bytes, the range " + std::to_string(range.length_bytes));
    return {};
  }

  std::shared_ptr<DeviceState> state_ = std::make_shared<DeviceState>();
  std::atomic<uint32_t> next_lkey_{1};
};

}  // namespace
}  // namespace shm

std::unique_ptr<Device> create_shm_device() { return std::make_unique<shm::ShmDevice>(); }

}  // namespace rrpc::provider
