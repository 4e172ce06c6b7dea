// What a small call costs in the core: instructions at each end and allocations, over shared memory. Client and server
// take turns in one thread, so that every run counts the same. `make call-cost` runs it under callgrind, which counts
// within client_turn() and server_turn(); on its own it counts allocations.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "driver/client.h"
#include "driver/server.h"

namespace {

std::atomic<long> allocations{0};  // of this thread's turns
thread_local bool counting = false;

}  // namespace

void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* const made = std::malloc(bytes)) return made;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace rrpc::driver {
namespace {

constexpr int kWarmUp = 3000;
constexpr int kCalls = 2000;
constexpr size_t kPayloadBytes = 32;
const std::atomic<bool> kUninterrupted{false};
const std::array<std::byte, kPayloadBytes> kPayload{};

[[gnu::noinline]] rpc::ClientCallRef client_starts(Client& client) {
  auto call = std::make_shared<rpc::ClientCall>();
  rpc::CallRequest request;
  request.method = "echo";
  request.payload = kPayload;
  if (!client.start(call, std::move(request)).ok()) std::abort();
  return call;
}

[[gnu::noinline]] void client_ends(Client& client, const rpc::ClientCallRef& call) {
  while (client.wait(call, kNever, kUninterrupted) != WaitResult::kDone) {
  }
  if (!call->status().ok() || call->payload().size() != kPayloadBytes) std::abort();
}

[[gnu::noinline]] void server_turn(Server& server) {
  Work work;
  while (server.next(work, kNever, kUninterrupted) != NextResult::kWork) {
  }
  const rpc::ServerCallRef call = work.call;
  const uint64_t handle = std::exchange(work, Work()).handle;
  rpc::Reply reply;
  reply.payload = call->payload();
  if (!server.reply(handle, std::move(reply)).ok()) std::abort();
}

void turn(Client& client, Server& server) {
  const rpc::ClientCallRef call = client_starts(client);
  server_turn(server);
  client_ends(client, call);
}

int run() {
  Options options;
  options.poll = PollMode::kBusy;
  Server server(options);
  const auto address = server.listen("shm://call-cost-" + std::to_string(getpid()));
  if (!address.ok()) return std::puts(address.status().message().c_str()), 1;
  auto client = Client::connect(*address, options, kNever);
  if (!client.ok()) return std::puts(client.status().message().c_str()), 1;
  for (int i = 0; i < kWarmUp; ++i) turn(**client, server);
  counting = true;
  for (int i = 0; i < kCalls; ++i) turn(**client, server);
  counting = false;
  std::printf("%d calls, %.3f allocations a call\n", kCalls, static_cast<double>(allocations) / kCalls);
  (*client)->close();
  server.stop();
  return 0;
}

}  // namespace
}  // namespace rrpc::driver

int main() { return rrpc::driver::run(); }
