// Two processes for the tests of the shm provider: the test's own, and one that it forks to run a function.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "provider/shm/shm_device.h"
#include "shared_memory.h"

namespace rrpc::provider::shm {

constexpr uint32_t kSlotBytes = 256;
constexpr uint32_t kSlotCount = 16;

inline std::string test_path(const std::string& name) {
  return "/tmp/rrpc-shm-test-" + std::to_string(getpid()) + "-" + name + ".sock";
}

// Mappings of files made by SharedBytes, in this process.
inline size_t mapped_test_files() {
  std::ifstream lines("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) count += line.find("memfd:rrpc-test") != std::string::npos;
  return count;
}

// One end: a queue pair with a ring of receives, reposted as soon as a message is copied out.
struct Node {
  std::unique_ptr<Device> device = create_shm_device();
  std::unique_ptr<CompletionQueue> cq = device->create_completion_queue(1024);
  SharedBytes ring = SharedBytes(kSlotBytes * kSlotCount);
  std::unique_ptr<MemoryRegion> ring_region = device->register_memory(shared_range(ring)).value();
  std::unique_ptr<Listener> listener;
  std::unique_ptr<QueuePair> qp;
  std::vector<std::string> messages;
  std::vector<Completion> completions;  // of the send queue, and failed receives
  size_t messages_taken = 0;
  // Done while this end waits: what the other end does in the same thread.
  std::function<void()> meanwhile = [] {};

  Sge slot(uint64_t index) { return {ring.data() + index * kSlotBytes, kSlotBytes, ring_region.get()}; }

  bool connected() const { return qp && qp->state() == QueuePairState::kConnected; }
  bool dead() const { return qp->state() == QueuePairState::kError; }

  void begin(std::unique_ptr<QueuePair> made) {
    qp = std::move(made);
    for (uint64_t i = 0; i < kSlotCount; ++i) ASSERT_TRUE(qp->post_receive({i, slot(i)}).ok());
    ASSERT_TRUE(qp->start(as_bytes("hello")).ok());
  }
  void listen(const std::string& path, bool any_user = false) {
    auto made = device->listen(path, {.any_user = any_user});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    listener = std::move(made).value();
  }
  void accept_one() {
    std::unique_ptr<QueuePair> made;
    ASSERT_TRUE(wait([&] {
      auto accepted = listener->accept(*cq, {});
      if (accepted.ok()) made = std::move(accepted).value();
      return made != nullptr;
    }));
    begin(std::move(made));
    ASSERT_TRUE(wait([&] { return connected(); })) << qp->error().to_string();
  }
  void connect(const std::string& path) {
    Result<std::unique_ptr<QueuePair>> opened = unavailable("not tried");
    ASSERT_TRUE(wait([&] {
      opened = device->open(*cq, path, {}, deadline_after(now_ns(), kSecond));
      return opened.ok();
    })) << opened.status().to_string();
    begin(std::move(opened).value());
    ASSERT_TRUE(wait([&] { return connected(); })) << qp->error().to_string();
  }

  size_t step() {
    meanwhile();
    std::array<Completion, 32> out;
    const size_t count = cq->poll(out);
    for (const Completion& completion : std::span(out).first(count)) take(completion);
    return count;
  }
  void take(const Completion& completion) {
    if (completion.opcode != Opcode::kReceive || completion.status != WcStatus::kSuccess) {
      completions.push_back(completion);
      return;
    }
    const Sge sge = slot(completion.wr_id);
    const std::byte* const place = completion.place != nullptr ? completion.place : sge.address;
    messages.emplace_back(reinterpret_cast<const char*>(place), completion.length_bytes);
    if (!dead()) (void)qp->post_receive({completion.wr_id, sge});
  }

  [[nodiscard]] bool wait(const std::function<bool()>& condition) {
    const TimeNs deadline = now_ns() + 10 * kSecond;
    while (!condition()) {
      if (now_ns() >= deadline) return false;
      if (step() == 0) sched_yield();
    }
    return true;
  }
  // Arms, polls once more, sleeps: as a driver does.
  [[nodiscard]] bool wait_asleep(const std::function<bool()>& condition) {
    const TimeNs deadline = now_ns() + 10 * kSecond;
    while (!condition()) {
      if (now_ns() >= deadline) return false;
      cq->arm();
      if (step() > 0) continue;
      sleep_on_handles(1000);
      step();
    }
    return true;
  }
  int sleep_on_handles(int timeout_ms) {
    std::vector<WaitHandle> handles;
    cq->append_wait_handles(handles);
    std::vector<pollfd> fds;
    for (const WaitHandle& handle : handles) {
      if (handle.fd == WaitHandle::kPollAgain) return 0;
      fds.push_back({handle.fd, static_cast<short>(handle.want_write ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const int ready = ::poll(fds.data(), fds.size(), timeout_ms);
    if (ready > 0) cq->look_at_wait_handles();
    return ready;
  }
  std::string next_message() {
    if (!wait([&] { return messages.size() > messages_taken; })) return "(nothing came)";
    return messages[messages_taken++];
  }

  Status send(std::string text, bool solicited = true) {
    const Sge sge{reinterpret_cast<std::byte*>(text.data()), static_cast<uint32_t>(text.size()), nullptr};
    const WorkRequest request{
        .wr_id = 1, .sges = {&sge, 1}, .signalled = false, .inline_data = true, .solicited = solicited};
    return qp->post_send({&request, 1});
  }
  // The status of a transfer that has ended.
  WcStatus transfer(Opcode opcode, const Sge& local, uint64_t remote, uint32_t rkey) {
    const size_t before = completions.size();
    const WorkRequest request{
        .wr_id = 7, .opcode = opcode, .sges = {&local, 1}, .remote_address = remote, .rkey = rkey};
    if (!qp->post_send({&request, 1}).ok()) return WcStatus::kFatal;
    return wait([&] { return completions.size() > before; }) ? completions[before].status : WcStatus::kRetryExceeded;
  }
};

// Address and key of exposed memory, as one end tells the other.
struct Ticket {
  uint64_t address;
  uint64_t length_bytes;
  uint32_t rkey;

  std::string text() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
  static Ticket from(const std::string& text) {
    Ticket ticket{};
    std::memcpy(&ticket, text.data(), std::min(text.size(), sizeof(ticket)));
    return ticket;
  }
};

class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~ChildProcess() {
    if (pid_ > 0) kill_now();
  }
  pid_t pid() const { return pid_; }
  void kill_now() {
    kill(pid_, SIGKILL);
    (void)exit_code();
  }
  int exit_code() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

}  // namespace rrpc::provider::shm
