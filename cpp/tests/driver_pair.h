// A server with worker threads and a few methods, and calls to it: what the driver's tests share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "driver/client.h"
#include "driver/server.h"
#include "secured.h"

namespace rrpc::driver::testing {

inline const std::atomic<bool> kUninterrupted{false};

// RRPC_TEST_SCALE below 1 makes the tests shorter, for slow builds.
inline int scaled(int count) {
  static const double scale = [] {
    const char* text = std::getenv("RRPC_TEST_SCALE");
    return text == nullptr ? 1.0 : std::strtod(text, nullptr);
  }();
  return std::max(1, static_cast<int>(count * scale));
}

// How much slower than a usual machine this one is (RRPC_TEST_TIME_SCALE, at least 1): bounds on waiting are stretched
// by it.
inline double time_scale() {
  static const double scale = [] {
    const char* text = std::getenv("RRPC_TEST_TIME_SCALE");
    return text == nullptr ? 1.0 : std::max(1.0, std::strtod(text, nullptr));
  }();
  return scale;
}
inline TimeNs patience(TimeNs usual) { return static_cast<TimeNs>(static_cast<double>(usual) * time_scale()); }
inline int patience_ms(int usual) { return static_cast<int>(usual * time_scale()); }

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

inline TimeNs in_ms(int64_t ms) { return deadline_after(now_ns(), ms * kMillisecond); }
// The end of a wait that only a fault reaches.
inline TimeNs patiently_ms(int64_t ms) { return deadline_after(now_ns(), patience(ms * kMillisecond)); }

// The transports to test: shm, tcp and tcp with TLS, or those that RRPC_TEST_TRANSPORTS names, as in the virtual
// machine, whose adapters have the addresses that tools/vm/rdma.sh gives them.
inline std::vector<std::string> transports_under_test() {
  const char* named = std::getenv("RRPC_TEST_TRANSPORTS");
  std::stringstream words(named == nullptr ? kTransportsUnderTest : named);
  std::vector<std::string> transports;
  for (std::string word; std::getline(words, word, ',');) transports.push_back(word);
  return transports;
}

inline bool over_verbs(std::string_view transport) { return transport.starts_with("rxe") || transport == "siw"; }

// A name of GoogleTest's: letters, digits and underscores.
inline std::string test_name(std::string transport, PollMode poll) {
  std::replace(transport.begin(), transport.end(), '-', '_');
  return transport + (poll == PollMode::kEvent ? "_event" : poll == PollMode::kBusy ? "_busy" : "_adaptive");
}

struct Way {
  std::string transport;
  PollMode poll;
};
inline std::vector<Way> ways(const std::vector<std::string>& transports, const std::vector<PollMode>& polls) {
  std::vector<Way> all;
  for (const std::string& transport : transports) {
    for (const PollMode poll : polls) all.push_back({transport, poll});
  }
  return all;
}
inline std::string way_name(const ::testing::TestParamInfo<Way>& way) {
  return test_name(way.param.transport, way.param.poll);
}

// To listen on; nobody else has it.
inline std::string new_address(const std::string& transport) {
  static std::atomic<int> count{0};
  if (transport == "shm") return "shm://driver-test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
  if (transport == "rxe") return "verbs://10.9.0.1:0";
  if (transport == "rxe-socket") return "verbs+tcp://10.9.0.1:0";
  if (transport == "siw") return "verbs://10.9.1.1:0";
  return transport + "://127.0.0.1:0";
}

template <typename Predicate>
bool eventually(Predicate predicate, int timeout_ms = 20'000) {
  for (const TimeNs deadline = patiently_ms(timeout_ms); now_ns() < deadline; sleep_ms(1)) {
    if (predicate()) return true;
  }
  return predicate();
}

inline size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

// CPU time of the whole process.
inline TimeNs cpu_ns() {
  timespec ts{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return static_cast<TimeNs>(ts.tv_sec) * kSecond + ts.tv_nsec;
}

struct VectorHold final : endpoint::Hold {
  explicit VectorHold(std::vector<std::byte> data) : bytes(std::move(data)) {}
  std::vector<std::byte> bytes;
};

inline std::vector<std::byte> pattern(size_t length_bytes, uint64_t seed) {
  std::vector<std::byte> bytes(length_bytes);
  for (size_t i = 0; i < length_bytes; ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + seed * 40503u) >> 8);
  return bytes;
}

inline endpoint::Buffer owning_buffer(std::vector<std::byte> bytes) {
  auto hold = std::make_unique<VectorHold>(std::move(bytes));
  endpoint::Buffer buffer;
  buffer.data = hold->bytes.data();
  buffer.length_bytes = hold->bytes.size();
  buffer.hold = std::move(hold);
  return buffer;
}

// Methods: echo (payload and buffers come back), nap (payload: milliseconds), hold (until release()).
class TestServer {
 public:
  explicit TestServer(const std::string& transport, int workers = 1, const Options& options = {})
      : TestServer(std::in_place, new_address(transport), workers, options) {}
  // At an address of the test's choice.
  TestServer(std::in_place_t, const std::string& address, int workers = 1, const Options& options = {})
      : server_(secured(address, options, "server")) {
    const auto bound = server_.listen(address);
    EXPECT_TRUE(bound.ok()) << bound.status().to_string();
    if (bound.ok()) address_ = *bound;
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
  }
  ~TestServer() {
    release();
    server_.stop();
    join();
  }
  void join() {
    for (std::thread& worker : workers_) {
      if (worker.joinable()) worker.join();
    }
  }

  const std::string& address() const { return address_; }
  Server& server() { return server_; }
  void release() { released_ = true; }
  int served() const { return served_; }
  int peak() const { return peak_; }  // of handlers at work

 private:
  void work() {
    Work work;
    while (true) {
      const NextResult next = server_.next(work, kNever, kUninterrupted);
      if (next == NextResult::kEnded) return;
      if (next != NextResult::kWork) continue;
      const int busy = ++busy_;
      for (int peak = peak_; peak < busy && !peak_.compare_exchange_weak(peak, busy);) {
      }
      rpc::Reply reply;
      const std::string payload(as_text(work.call->payload()));
      if (work.call->method() == "nap") sleep_ms(std::stoi(payload));
      while (work.call->method() == "hold" && !released_) sleep_ms(1);
      reply.payload = as_bytes(payload);
      for (const endpoint::ReceivedBlock& block : work.call->blocks())
        reply.buffers.push_back(owning_buffer({block.data(), block.data() + block.size()}));
      if (work.call->out_bytes() > 0) reply.out_index = 0;
      const uint64_t handle = std::exchange(work, Work()).handle;
      ++served_;
      --busy_;
      (void)server_.reply(handle, std::move(reply));
    }
  }

  Server server_;
  std::string address_;
  std::atomic<bool> released_{false};
  std::atomic<int> served_{0};
  std::atomic<int> busy_{0};
  std::atomic<int> peak_{0};
  std::vector<std::thread> workers_;
};

inline std::unique_ptr<Client> connect_to(const std::string& address, const Options& options = {}) {
  auto client = Client::connect(address, secured(address, options, "client"), patiently_ms(10'000));
  EXPECT_TRUE(client.ok()) << client.status().to_string();
  return client.ok() ? std::move(*client) : nullptr;
}

// One call as a test sees it.
class TestCall {
 public:
  TestCall(Client& client, std::string_view method, std::string_view payload, TimeNs deadline = kNever,
           std::vector<endpoint::Buffer> buffers = {}, std::optional<endpoint::Buffer> out = {})
      : client_(client), call_(std::make_shared<rpc::ClientCall>()) {
    rpc::CallRequest request;
    request.method = method;
    request.payload = as_bytes(payload);
    request.deadline = deadline;
    request.buffers = std::move(buffers);
    request.out = std::move(out);
    started_ = client.start(call_, std::move(request));
  }

  Status wait(TimeNs deadline = patiently_ms(60'000)) {
    if (!started_.ok()) return started_;
    while (true) {
      const WaitResult result = client_.wait(call_, deadline, kUninterrupted);
      if (result == WaitResult::kDone) return call_->status();
      if (result == WaitResult::kTimeout) return internal_error("the test has waited long enough");
    }
  }
  const Status& started() const { return started_; }
  rpc::ClientCall& operator*() { return *call_; }
  const rpc::ClientCallRef& ref() const { return call_; }
  std::string text() const { return std::string(as_text(call_->payload())); }

 private:
  Client& client_;
  rpc::ClientCallRef call_;
  Status started_;
};

}  // namespace rrpc::driver::testing
