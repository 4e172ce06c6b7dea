// What a completion queue over tcp keeps until somebody polls it.
#include <gtest/gtest.h>

#include <array>

#include "base/bytes.h"
#include "provider/tcp/completion_queue.h"

namespace rrpc::provider::tcp {
namespace {

class QuietQueuePair final : public Pollable {
 public:
  int fd() const override { return -1; }
  bool want_write() const override { return false; }
  void drive() override {}
  void completion_taken(Opcode) override {}
};

TEST(TcpCompletionQueueTest, MessagesWhosePlacesAreUsedAgainAreCopied) {
  TcpCompletionQueue queue;
  QuietQueuePair first;
  QuietQueuePair second;
  const auto place = as_bytes("place");
  std::array<std::byte, 5> receive{};
  std::array<std::byte, 5> other{};
  const Completion completion{.opcode = Opcode::kReceive, .length_bytes = 5, .place = place.data()};
  queue.push(&first, completion, receive.data());
  queue.push(&second, completion, other.data());
  queue.push(&first, {.opcode = Opcode::kSend});
  queue.settle(&first);
  EXPECT_EQ(as_text(receive), "place");
  EXPECT_EQ(as_text(other), std::string_view("\0\0\0\0\0", 5));
  Completion out[3];
  ASSERT_EQ(queue.poll(out), 3u);
  EXPECT_EQ(out[0].place, nullptr);
  EXPECT_EQ(out[1].place, place.data());
}

}  // namespace
}  // namespace rrpc::provider::tcp
