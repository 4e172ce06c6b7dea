// What a small call costs in the core, over shared memory. Client and server take turns in one thread, so that every
// run counts the same: allocations of the whole, and the instructions of each end's session, which are stepped through.
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
#include <vector>

#include "driver_pair.h"
#include "provider/shm/shm_device.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static thread_local bool g_counting = false;
static thread_local long g_allocations = 0;
static thread_local size_t g_fails_once_from = SIZE_MAX;  // bytes

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (g_counting) ++g_allocations;
  if (bytes >= g_fails_once_from) {
    g_fails_once_from = SIZE_MAX;
    throw std::bad_alloc();
  }
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

rpc::CallRequest request() {
  rpc::CallRequest made;
  made.method = "echo";
  made.payload = kPayload;
  return made;
}

// A client and a server that poll without end.
class Pair {
 public:
  Pair() : server_(options()), client_(connect_to(server_.listen(new_address("shm")).value(), options())) {}
  ~Pair() {
    client_->close();
    server_.stop();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void call() {
    const rpc::ClientCallRef call = client_->new_call();
    bool well = client_->start(call, request()).ok();
    serve();
    while (client_->wait(call, kNever, kUninterrupted) != WaitResult::kDone) {
    }
    well = well && call->status().ok() && call->payload().size() == kPayloadBytes;
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
  std::unique_ptr<Client> client_;
};

TEST(CallCost, ASteadyLoadAllocatesNothing) {
  Pair pair;
  for (int i = 0; i < kWarmUp; ++i) pair.call();
  g_allocations = 0;
  g_counting = true;
  for (int i = 0; i < 5 * kWarmUp; ++i) pair.call();
  g_counting = false;
  EXPECT_LE(g_allocations, kWarmUp / 100) << "lists that grow when the engine's own thread was at the connection";
}

enum Part : int { kNeither, kClient, kServer, kParts };

// One end of a connection without a driver: no thread, no mutex, no clock.
struct End : rpc::SessionEvents {
  void make(rpc::Role role, std::unique_ptr<provider::CompletionQueue> its_cq,
            std::unique_ptr<provider::QueuePair> qp) {
    session =
        std::make_unique<rpc::Session>(role, endpoint::DeviceContext{*device, pool, registrations}, std::move(its_cq),
                                       std::move(qp), rpc::SessionOptions(), 1, rpc::HelloFields(), *this);
    if (!session->start(0).ok()) std::abort();
  }
  void on_ready() override { ready = true; }
  void on_closed(const Status&) override {}
  void on_call_done(const rpc::ClientCallRef&) override {}
  void on_stream_changed(const rpc::StreamRef&) override {}
  void on_request(const rpc::ServerCallRef& call) override {
    session->server().reply(call, {.payload = call->payload()}, 0);
  }

  std::unique_ptr<provider::Device> device = provider::create_shm_device();
  endpoint::Pool pool{1 << 20};
  endpoint::RegistrationCache registrations{*device, pool, 1 << 20};
  std::unique_ptr<rpc::Session> session;
  bool ready = false;
};

class Sessions {
 public:
  Sessions() {
    const provider::QueuePairConfig config = endpoint::queue_pair_config({});
    const std::string path = new_address("shm").substr(std::string_view("shm://").size());
    const auto listener = server_.device->listen(path, {}).value();
    auto at_client = client_.device->create_completion_queue(1024);
    auto at_server = server_.device->create_completion_queue(1024);
    auto dialled = client_.device->open(*at_client, path, config, patiently_ms(10'000)).value();
    std::unique_ptr<provider::QueuePair> accepted;
    while (accepted == nullptr) accepted = listener->accept(*at_server, config).value();
    client_.make(rpc::Role::kClient, std::move(at_client), std::move(dialled));
    server_.make(rpc::Role::kServer, std::move(at_server), std::move(accepted));
    while (!client_.ready || !server_.ready) (void)client_.session->progress(0), (void)server_.session->progress(0);
  }

  void call(std::atomic<Part>& part) {
    part.store(kClient, std::memory_order_relaxed);
    const auto call = std::allocate_shared_for_overwrite<rpc::ClientCall>(allocator_);
    if (!client_.session->client().start(call, request(), 0).ok()) std::abort();
    part.store(kServer, std::memory_order_relaxed);
    (void)server_.session->progress(0);
    part.store(kClient, std::memory_order_relaxed);
    (void)client_.session->progress(0);
    part.store(kNeither, std::memory_order_relaxed);
    if (!call->done() || !call->status().ok() || call->payload().size() != kPayloadBytes) std::abort();
  }

  // The client has no memory for the reply.
  rpc::ClientCallRef call_without_memory(Bytes payload) {
    rpc::CallRequest request;
    request.method = "echo";
    request.payload = payload;
    const auto call = std::make_shared<rpc::ClientCall>();
    if (!client_.session->client().start(call, std::move(request), 0).ok()) std::abort();
    (void)server_.session->progress(0);
    g_fails_once_from = payload.size();
    (void)client_.session->progress(0);
    g_fails_once_from = SIZE_MAX;
    return call;
  }
  bool client_failed() const { return client_.session->failed(); }

 private:
  End client_;
  End server_;
  const Recycler::Owner recycler_ = Recycler::make();
  RecyclingAllocator<rpc::ClientCall> allocator_{*recycler_};
};

TEST(CallCost, ACallWithoutMemoryForItsReplyEndsWithTheConnection) {
  constexpr size_t kTooLongForTheCallItself = 1000;
  const std::vector<std::byte> payload(kTooLongForTheCallItself);
  Sessions sessions;
  const rpc::ClientCallRef call = sessions.call_without_memory(payload);
  EXPECT_TRUE(sessions.client_failed());
  ASSERT_TRUE(call->done()) << "its caller would wait for ever";
  EXPECT_FALSE(call->status().ok());
}

// Waits for the child's next stop. False: it has ended.
bool wait_for_stop(pid_t child, int& status) { return waitpid(child, &status, 0) == child && WIFSTOPPED(status); }

TEST(CallCost, InstructionsAtEachEnd) {
  constexpr int kCalls = 3;
  constexpr int kMayNotTrace = 3;
  using Shared = std::atomic<Part>;
  void* const page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  Shared& part = *new (page) Shared(kNeither);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Sessions sessions;
    for (int i = 0; i < kWarmUp; ++i) sessions.call(part);
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kMayNotTrace);
    raise(SIGSTOP);
    for (int i = 0; i < kCalls; ++i) sessions.call(part);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  const bool stopped = wait_for_stop(child, status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kMayNotTrace) {
    const char* ci = std::getenv("CI");
    if (ci != nullptr && std::string_view(ci) == "true") FAIL() << "processes may not be traced here";
    GTEST_SKIP() << "processes may not be traced here";
  }
  ASSERT_TRUE(stopped) << "the process can't be traced, or its calls fail";
  std::array<long, kParts> instructions{};
  while (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0 && wait_for_stop(child, status) &&
         WSTOPSIG(status) == SIGTRAP)
    ++instructions[static_cast<size_t>(part.load(std::memory_order_relaxed))];
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
  EXPECT_LE(at_client, 1000);
  EXPECT_LE(at_server, 1000);
}

}  // namespace
}  // namespace rrpc::driver::testing

#endif
