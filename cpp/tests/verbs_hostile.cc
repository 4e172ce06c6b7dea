// Peers that misbehave or vanish, on real verbs: they are refused, and only their own connection dies.
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "verbs_under_test.h"

namespace rrpc::provider::conformance {
namespace {

class VerbsHostileTest : public ConformanceTest {
 protected:
  struct Pair {
    std::unique_ptr<QueuePair> client;
    std::unique_ptr<QueuePair> server;
  };

  // Another connection over the same completion queues.
  Pair connect_bystander() {
    connect({}, {}, 1);
    return {std::move(client_.qp), std::move(server_.qp)};
  }

  // The bystander's message arrives where it has posted a receive (1000).
  void expect_goes_on(Pair& bystander) {
    client_.completions.clear();
    server_.completions.clear();
    client_.qp = std::move(bystander.client);
    server_.qp = std::move(bystander.server);
    ASSERT_TRUE(connected(client_)) << client_.qp->error().to_string();
    Buffer& source = buffer(server_, 5000, 8);
    Buffer& target = buffer(client_, 5000);
    const uint32_t rkey = expose(server_, source, 0, 5000, kRemoteRead);
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 70, target.sge(), source.bytes.data(), rkey).ok());
    ASSERT_TRUE(post_send(client_, 71, target.sge(0, 100)).ok());
    ASSERT_TRUE(wait_for([&] { return client_.count(71) == 1 && server_.count(1000) == 1; }));
    EXPECT_EQ(client_.status(70), WcStatus::kSuccess);
    EXPECT_EQ(target.bytes, source.bytes);
    EXPECT_EQ(server_.status(1000), WcStatus::kSuccess);
  }

  // READs with a key that the peer didn't give; the connection is gone afterwards.
  void expect_refused_read(const std::byte* remote, uint32_t rkey, size_t length_bytes) {
    Buffer& own = buffer(client_, length_bytes, 6);
    const SharedBytes before = own.bytes;
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 50, own.sge(), remote, rkey).ok());
    ASSERT_TRUE(wait_done(client_, 50));
    expect_refused(client_, 50);
    ASSERT_TRUE(wait_for([&] { return client_.dead(); }));
    EXPECT_EQ(own.bytes, before);
  }

  void part() {
    client_.qp.reset();
    server_.qp.reset();
    client_.completions.clear();
    server_.completions.clear();
  }
};

TEST_P(VerbsHostileTest, AKeptDescriptorIsRefusedAndEndsOnlyItsOwnConnection) {
  Pair bystander = connect_bystander();
  connect();
  Buffer& memory = buffer(server_, 4096, 3);
  Buffer& own = buffer(client_, 4096);
  const uint32_t kept = expose(server_, memory, 0, 4096, kRemoteRead);
  ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 1, own.sge(), memory.bytes.data(), kept).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  ASSERT_EQ(client_.status(1), WcStatus::kSuccess);
  revoke(server_, kept);
  expect_refused_read(memory.bytes.data(), kept, 4096);
  ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
  part();
  expect_goes_on(bystander);
}

TEST_P(VerbsHostileTest, GuessedKeysAreRefused) {
  Pair bystander = connect_bystander();
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): a failure should come again
  for (int i = 0; i < 40; ++i) {
    connect();
    Buffer& memory = buffer(server_, 4096, 3);
    const uint32_t key = expose(server_, memory, 0, 4096, kRemoteRead | kRemoteWrite);
    const uint32_t guess = i < 32 ? key ^ (1u << i) : static_cast<uint32_t>(random());
    SCOPED_TRACE(i);
    expect_refused_read(memory.bytes.data(), guess, 64);
    part();
    if (HasFatalFailure()) return;
  }
  expect_goes_on(bystander);
}

TEST_P(VerbsHostileTest, WhatIsBesideAnExposureOnItsPageIsRefused) {
  Pair bystander = connect_bystander();
  for (const size_t offset : {size_t{0}, size_t{4096 - 64}, size_t{2 * 4096 - 32}}) {
    connect();
    Buffer& memory = buffer(server_, 4 * 4096, 3);
    const uint32_t key = expose(server_, memory, 4096, 4096, kRemoteRead);
    SCOPED_TRACE(offset);
    expect_refused_read(memory.bytes.data() + offset, key, 128);
    part();
    if (HasFatalFailure()) return;
  }
  expect_goes_on(bystander);
}

// Soft-RoCE on Linux 6.1 crashes when a key is closed twice: cpp/provider/verbs/exposures_test.cc stands for that.
TEST_P(VerbsHostileTest, AMessageThatClosesAKeyThatIsNotOpenEndsItsConnection) {
  Pair bystander = connect_bystander();
  if (!bystander.client->limits().invalidates) return part();
  for (const bool old : {false, true}) {
    SCOPED_TRACE(old ? "a key of a window that was opened anew since" : "a key that never was");
    connect({}, {}, 1);
    Buffer& memory = buffer(server_, 4096, 3);
    const uint32_t first = expose(server_, memory, 0, 4096, kRemoteRead);
    revoke(server_, first);
    const uint32_t open = expose(server_, memory, 0, 4096, kRemoteRead);
    ASSERT_EQ(first >> 8, open >> 8) << "the same window";
    ASSERT_TRUE(post_invalidating(client_, 1, buffer(client_, 64).sge(), old ? first : open ^ (1u << 20)).ok());
    ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
    EXPECT_FALSE(server_.qp->error().ok());
    EXPECT_TRUE(server_.qp->revoke(open));
    ASSERT_TRUE(wait_for([&] { return client_.dead(); }));
    part();
  }
  expect_goes_on(bystander);
}

// An adapter refuses that; Soft-RoCE closes any window of its own, so there the receiver finds it.
TEST_P(VerbsHostileTest, AMessageThatClosesAnotherConnectionsKeyEndsItsConnection) {
  Pair bystander = connect_bystander();
  if (!bystander.client->limits().invalidates) return part();
  Buffer& memory = buffer(server_, 4096, 3);
  client_.qp = std::move(bystander.client);
  server_.qp = std::move(bystander.server);
  const uint32_t foreign = expose(server_, memory, 0, 4096, kRemoteRead);
  bystander = {std::move(client_.qp), std::move(server_.qp)};
  connect({}, {}, 1);
  ASSERT_TRUE(post_invalidating(client_, 1, buffer(client_, 64).sge(), foreign).ok());
  ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
  EXPECT_FALSE(server_.qp->error().ok());
  part();
}

// What the process that is killed says first, in a message.
struct Exposed {
  uint64_t address;
  uint32_t rkey;
  uint32_t length_bytes;
};

// Runs in a process of its own: serves READs until it is killed.
class VerbsPeer : public VerbsHostileTest {
 protected:
  static int pipe_fd() { return number_from_environment("RRPC_VERBS_PEER_PIPE", -1); }
};

TEST_P(VerbsPeer, DISABLED_Serves) {
  const std::string address = listener_->address();
  ASSERT_EQ(write(pipe_fd(), address.data(), address.size()), static_cast<ssize_t>(address.size()));
  close(pipe_fd());
  server_.qp = accept_server();
  ASSERT_NE(server_.qp, nullptr);
  ASSERT_TRUE(server_.qp->start({}).ok());
  ASSERT_TRUE(wait_for([&] { return connected(server_); }));
  Buffer& memory = buffer(server_, 1 << 20, 5);
  const Exposed exposed{reinterpret_cast<uint64_t>(memory.bytes.data()),
                        expose(server_, memory, 0, memory.bytes.size(), kRemoteRead), 1 << 20};
  Buffer& message = buffer(server_, sizeof(exposed));
  std::memcpy(message.bytes.data(), &exposed, sizeof(exposed));
  ASSERT_TRUE(post_send(server_, 1, message.sge()).ok());
  (void)wait_for([&] { return server_.dead(); });
}

class VerbsKillTest : public VerbsHostileTest {
 protected:
  void TearDown() override {
    if (child_ > 0) end_child();
    VerbsHostileTest::TearDown();
  }

  // The address that it listens on.
  std::string start_child() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    const std::string filter = "--gtest_filter=*VerbsPeer.DISABLED_Serves/" + GetParam().name;
    const std::string variable = "RRPC_VERBS_PEER_PIPE=" + std::to_string(ends[1]);
    std::vector<char*> environment;
    for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    char self[4096] = {};  // the provider is looked for beside the name that a program was started by
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
    const char* const arguments[] = {self, "--gtest_also_run_disabled_tests", "--gtest_brief=1", filter.c_str(),
                                     nullptr};
    child_ = fork();
    if (child_ == 0) {
      execve(self, const_cast<char* const*>(arguments), environment.data());
      _exit(127);
    }
    close(ends[1]);
    char text[256] = {};
    const ssize_t count = read(ends[0], text, sizeof(text));
    close(ends[0]);
    return count > 0 ? std::string(text, static_cast<size_t>(count)) : "";
  }

  void end_child() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  pid_t child_ = -1;
};

// What was posted before and after comes back, and in order.
TEST_P(VerbsKillTest, AllReadsComeBackWhenThePeerIsKilled) {
  const std::string address = start_child();
  ASSERT_FALSE(address.empty());
  auto opened = client_.device->open(*client_.cq, address, {}, deadline_after(now_ns(), provider_->patience()));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  client_.qp = std::move(opened).value();
  Buffer& message = buffer(client_, sizeof(Exposed));
  post_receive(client_, 9'000, message.sge());
  ASSERT_TRUE(client_.qp->start({}).ok());
  ASSERT_TRUE(wait_done(client_, 9'000)) << client_.qp->error().to_string();
  Exposed exposed{};
  std::memcpy(&exposed, message.bytes.data(), sizeof(exposed));
  post_receive(client_, 9'001, message.sge());
  client_.completions.clear();

  Buffer& own = buffer(client_, exposed.length_bytes);
  uint64_t posted = 0;
  const auto post_one = [&] {
    const Sge sink = own.sge();
    const WorkRequest request{.wr_id = posted,
                              .opcode = Opcode::kRead,
                              .sges = {&sink, 1},
                              .remote_address = exposed.address,
                              .rkey = exposed.rkey};
    if (post(client_, request).ok()) ++posted;
  };
  for (int i = 0; i < 8; ++i) post_one();
  ASSERT_TRUE(wait_for([&] { return !client_.completions.empty(); }));
  kill(child_, SIGKILL);
  for (int i = 0; i < 8; ++i) post_one();
  ASSERT_TRUE(wait_for([&] { return client_.dead() && client_.completions.size() == posted + 1; }))
      << client_.completions.size() << " of " << posted + 1;
  for (uint64_t i = 0; i < posted; ++i) EXPECT_EQ(client_.count(i), 1u) << i;
  EXPECT_EQ(client_.status(9'001), WcStatus::kFlushed);
  EXPECT_EQ(client_.qp->error().code(), StatusCode::kUnavailable) << client_.qp->error().to_string();
}

INSTANTIATE_TEST_SUITE_P(Verbs, VerbsHostileTest, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsPeer, ::testing::ValuesIn(verbs_cases()), factory_name);
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsKillTest, ::testing::ValuesIn(verbs_cases()), factory_name);

}  // namespace
}  // namespace rrpc::provider::conformance
