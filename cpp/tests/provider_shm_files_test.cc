// How the files behind exposed memory become known to the peer: few at a time, however many there are.
#include <algorithm>
#include <deque>

#include "provider/shm/slab.h"
#include "shm_peers.h"

namespace rrpc::provider::shm {
namespace {

constexpr size_t kFileBytes = 4096;

// Two ends in one thread; the server exposes files of its own, the client reads them.
class SharedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    node_.listen(test_path("files"));
    auto client = node_.device->open(*node_.cq, node_.listener->address(), {}, kNever).value();
    server_ = node_.listener->accept(*server_cq_, {}).value();
    ASSERT_TRUE(server_);
    ASSERT_TRUE(server_->start({}).ok());
    node_.meanwhile = [this] { poll_server(); };
    node_.begin(std::move(client));
    ASSERT_TRUE(node_.wait([&] { return node_.connected() && server_->state() == QueuePairState::kConnected; }));
  }

  struct File {
    SharedBytes memory = SharedBytes(kFileBytes);
    std::unique_ptr<MemoryRegion> region;
    uint32_t rkey = 0;
  };
  File& make_file() {
    File& file = files_.emplace_back();
    std::memset(file.memory.data(), static_cast<int>(files_.size() % 251), kFileBytes);
    MemoryRange range = shared_range(file.memory);
    range.peers_may_write = false;
    file.region = node_.device->register_memory(range).value();
    return file;
  }
  Status expose(File& file) {
    auto rkey = server_->expose(*file.region, file.memory.data(), kFileBytes, kRemoteRead);
    if (rkey.ok()) file.rkey = *rkey;
    return rkey.status();
  }
  // Exposes, reads, revokes.
  void expect_readable(File& file) {
    const Status exposed = expose(file);
    ASSERT_TRUE(exposed.ok()) << exposed.to_string();
    expect_read(file);
    EXPECT_TRUE(server_->revoke(file.rkey));
  }
  void expect_read(File& file) {
    std::memset(target_.data(), 0, kFileBytes);
    EXPECT_EQ(read(file), WcStatus::kSuccess) << node_.qp->error().to_string();
    EXPECT_EQ(std::memcmp(target_.data(), file.memory.data(), kFileBytes), 0);
  }
  WcStatus read(const File& file) {
    const Sge sge{target_.data(), kFileBytes, target_region_.get()};
    return node_.transfer(Opcode::kRead, sge, reinterpret_cast<uint64_t>(file.memory.data()), file.rkey);
  }
  void poll_server() {
    std::array<Completion, 8> out;
    (void)server_cq_->poll(out);
  }

  Node node_;
  std::unique_ptr<CompletionQueue> server_cq_ = node_.device->create_completion_queue(64);
  std::deque<File> files_;
  std::unique_ptr<QueuePair> server_;
  SharedBytes target_ = SharedBytes(kFileBytes);
  std::unique_ptr<MemoryRegion> target_region_ = node_.device->register_memory(shared_range(target_)).value();
};

TEST_F(SharedFiles, OfManyTheOneUsedLongestAgoIsForgotten) {
  const size_t before = mapped_test_files();
  for (size_t i = 0; i < kSlabsPerPeerMax + 10; ++i) expect_readable(make_file());
  EXPECT_EQ(mapped_test_files() - before, files_.size() + kSlabsPerPeerMax) << "here, and as the peer has them";
  for (File& file : files_) expect_readable(file);  // all of them forgotten once more
  EXPECT_EQ(mapped_test_files() - before, files_.size() + kSlabsPerPeerMax);
}

TEST_F(SharedFiles, OneThatIsInUseStays) {
  File& used = make_file();
  ASSERT_TRUE(expose(used).ok());
  for (size_t i = 0; i < 2 * kSlabsPerPeerMax; ++i) expect_readable(make_file());
  expect_read(used);
}

TEST_F(SharedFiles, WhereAllAreInUseOneMoreIsRefused) {
  for (size_t i = 0; i < kSlabsPerPeerMax; ++i) ASSERT_TRUE(expose(make_file()).ok());
  const Status refused = expose(make_file());
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("more than 64 files"), std::string::npos) << refused.message();
  EXPECT_TRUE(server_->revoke(files_[5].rkey));
  expect_readable(files_.back());
  expect_read(files_[6]);
}

// More notices than a socket holds, for a peer that doesn't look there meanwhile.
TEST_F(SharedFiles, NoticesWaitForRoomInTheSocket) {
  for (int i = 0; i < 600; ++i) {
    File& file = make_file();
    ASSERT_TRUE(expose(file).ok()) << i;
    if (i < 599) server_->revoke(file.rkey);
  }
  std::vector<WaitHandle> handles;
  server_cq_->append_wait_handles(handles);
  EXPECT_TRUE(std::ranges::any_of(handles, &WaitHandle::want_write)) << "the socket isn't full: the test shows nothing";
  expect_read(files_.back());
  expect_readable(files_.front());
}

}  // namespace
}  // namespace rrpc::provider::shm
