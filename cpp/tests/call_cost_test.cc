// What a small call costs in the core: instructions at each end and allocations, over shared memory. Client and server
// take turns in one thread, so that every run counts the same; the instructions are counted by stepping through them.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <new>
#include <utility>

#include "driver_pair.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static thread_local bool g_counting = false;
static thread_local long g_allocations = 0;

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (g_counting) ++g_allocations;
  if (void* const made = std::malloc(bytes)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace rrpc::driver::testing {
namespace {

constexpr int kWarmUp = 1000;
constexpr size_t kPayloadBytes = 32;
const std::array<std::byte, kPayloadBytes> kPayload{};

enum Part : int { kNeither, kClient, kServer, kParts };

// What the process that is stepped through shares with the one that counts.
struct Shared {
  std::atomic<Part> part{kNeither};
};

// A client and a server that poll without end, and the parts that a call has at each.
class Pair {
 public:
  Pair() : server_(options()), address_(server_.listen(new_address("shm")).value()) {
    client_ = connect_to(address_, options());
  }
  ~Pair() {
    client_->close();
    server_.stop();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void call(std::atomic<Part>& part) {
    part.store(kClient, std::memory_order_relaxed);
    const rpc::ClientCallRef call = client_->new_call();
    rpc::CallRequest request;
    request.method = "echo";
    request.payload = kPayload;
    bool well = client_->start(call, std::move(request)).ok();
    part.store(kServer, std::memory_order_relaxed);
    serve();
    part.store(kClient, std::memory_order_relaxed);
    while (client_->wait(call, kNever, kUninterrupted) != WaitResult::kDone) {
    }
    well = well && call->status().ok() && call->payload().size() == kPayloadBytes;
    part.store(kNeither, std::memory_order_relaxed);
    if (!well) std::abort();
  }

 private:
  static Options options() {
    Options options;
    options.poll = PollMode::kBusy;
    return options;
  }
  void serve() {
    Work work;
    while (server_.next(work, kNever, kUninterrupted) != NextResult::kWork) {
    }
    const rpc::ServerCallRef call = work.call;
    const uint64_t handle = std::exchange(work, Work()).handle;
    if (!server_.reply(handle, {.payload = call->payload()}).ok()) std::abort();
  }

  Server server_;
  std::string address_;
  std::unique_ptr<Client> client_;
};

TEST(CallCost, ASteadyLoadAllocatesNothing) {
  Shared shared;
  Pair pair;
  for (int i = 0; i < kWarmUp; ++i) pair.call(shared.part);
  g_allocations = 0;
  g_counting = true;
  for (int i = 0; i < 5 * kWarmUp; ++i) pair.call(shared.part);
  g_counting = false;
  EXPECT_LE(g_allocations, kWarmUp / 100) << "lists that grow when the engine's own thread was at the connection";
}

// Waits for the child's next stop. False: it has ended.
bool wait_for_stop(pid_t child, int& status) { return waitpid(child, &status, 0) == child && WIFSTOPPED(status); }

TEST(CallCost, InstructionsAtEachEnd) {
  constexpr int kCalls = 5;
  void* const page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const shared = new (page) Shared;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // its other threads aren't stepped through, nor counted
    {
      Pair pair;
      for (int i = 0; i < kWarmUp; ++i) pair.call(shared->part);
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
      raise(SIGSTOP);
      std::atomic<Part> uncounted{kNeither};
      for (int i = 0; i < 3; ++i) pair.call(uncounted);  // the pause costs the first something
      for (int i = 0; i < kCalls; ++i) pair.call(shared->part);
      raise(SIGSTOP);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_TRUE(wait_for_stop(child, status)) << "the process can't be traced, or its calls fail";
  std::array<long, kParts> instructions{};
  while (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0 && wait_for_stop(child, status) &&
         WSTOPSIG(status) == SIGTRAP)
    ++instructions[static_cast<size_t>(shared->part.load(std::memory_order_relaxed))];
  ASSERT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << "a call failed";
  (void)ptrace(PTRACE_DETACH, child, nullptr, nullptr);
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  munmap(page, sizeof(Shared));
  const long at_client = instructions[kClient] / kCalls;
  const long at_server = instructions[kServer] / kCalls;
  RecordProperty("client", std::to_string(at_client));
  RecordProperty("server", std::to_string(at_server));
  std::printf("instructions of a call: %ld at the client, %ld at the server\n", at_client, at_server);
  EXPECT_LE(at_client, 3100);
  EXPECT_LE(at_server, 4900);
}

}  // namespace
}  // namespace rrpc::driver::testing

#endif
