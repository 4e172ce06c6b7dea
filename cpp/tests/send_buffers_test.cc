#include "endpoint/send_buffers.h"

#include <gtest/gtest.h>

#include "sim_pair.h"

namespace rrpc::endpoint {
namespace {

constexpr uint32_t kCount = 16;
constexpr uint32_t kBytes = 4096;

class SendBuffersTest : public ::testing::Test {
 protected:
  void start() { ASSERT_TRUE(buffers_.start(*device_, *queue_pair_, kCount, kBytes).ok()); }
  void send() {
    ASSERT_FALSE(buffers_.used_up());
    const SendBuffers::Buffer buffer = buffers_.take();
    ASSERT_TRUE(buffer.region->contains(buffer.memory, kBytes));
    buffers_.posted(buffer);
  }

  provider::sim::SimNetwork network_{1};
  std::unique_ptr<provider::Device> device_ = network_.create_device("here");
  std::unique_ptr<provider::CompletionQueue> completions_ = device_->create_completion_queue(64);
  std::unique_ptr<provider::Listener> listener_ = device_->listen("here:1", {}).value();
  std::unique_ptr<provider::QueuePair> queue_pair_ = device_->open(*completions_, "here:1", {}, kNever).value();
  SendBuffers buffers_;
};

TEST_F(SendBuffersTest, OneThatIsDoneIsUsedAgain) {
  start();
  const std::byte* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    const SendBuffers::Buffer buffer = buffers_.take();
    if (first == nullptr) first = buffer.memory;
    EXPECT_EQ(buffer.memory, first);
    EXPECT_TRUE(buffers_.scarce()) << "or nobody would say that it is done";
    buffers_.posted(buffer);
    buffers_.done(1);
  }
}

TEST_F(SendBuffersTest, AsManyAsTheQueueTakesAreOnTheirWay) {
  start();
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kCount; ++i) send();
    EXPECT_TRUE(buffers_.used_up());
    buffers_.done(kCount);
    EXPECT_FALSE(buffers_.used_up());
  }
}

TEST_F(SendBuffersTest, ThoseWithoutABufferCountInTheOrder) {
  start();
  for (uint32_t i = 0; i < kCount; ++i) send();
  buffers_.done(1);
  send();
  buffers_.done(kCount);
  buffers_.posted({});  // went inline
  send();
  buffers_.done(2);
  for (uint32_t i = 0; i < kCount; ++i) send();
  EXPECT_TRUE(buffers_.used_up());
}

TEST_F(SendBuffersTest, NoneIsUsedUpWhereAllGoInline) { EXPECT_FALSE(buffers_.used_up()); }

}  // namespace
}  // namespace rrpc::endpoint
