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
    RRPC_RETURN_IF_ERROR(check_host_memory(range));
    const uint32_t lkey = next_lkey_.fetch_add(1, std::memory_order_relaxed);
    if (range.fd < 0) return std::unique_ptr<MemoryRegion>(std::make_unique<ShmRegion>(range, lkey));
    struct stat info{};
    if (fstat(range.fd, &info) != 0) return Status::from_errno(errno, "registering shared memory");
    const auto file_bytes = static_cast<uint64_t>(info.st_size);
    if (range.length_bytes > file_bytes || range.file_offset > file_bytes - range.length_bytes)
      return invalid_argument("a range of " + std::to_string(range.length_bytes) + " bytes at " +
                              std::to_string(range.file_offset) + " leaves its shared file of " +
                              std::to_string(file_bytes) + " bytes");
    return std::unique_ptr<MemoryRegion>(
        std::make_unique<ShmRegion>(range, lkey, state_->registry, FileKey(info.st_dev, info.st_ino), file_bytes));
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
    RRPC_RETURN_IF_ERROR(check_directory(address, path));
    RRPC_ASSIGN_OR_RETURN(UniqueFd socket, connect_to(path, deadline));
    return ShmQueuePair::create(state_, static_cast<ShmCompletionQueue&>(cq), std::move(socket), config, {});
  }

 private:
  std::shared_ptr<DeviceState> state_ = std::make_shared<DeviceState>();
  std::atomic<uint32_t> next_lkey_{1};
};

}  // namespace
}  // namespace shm

std::unique_ptr<Device> create_shm_device() { return std::make_unique<shm::ShmDevice>(); }

}  // namespace rrpc::provider
