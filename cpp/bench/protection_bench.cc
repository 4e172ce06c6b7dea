// What protection costs over shared memory: a small call, and 16 MiB as an argument. Both ends take turns in one
// thread, so that what is measured is the work and no waiting; a second thread helps with long ranges, and its time
// counts too. What shared memory copies is an adapter's work elsewhere, and over RDMA costs no CPU: the figures of a
// protected call are told without it, too.
//
//   protection_bench [seconds]      compare with: openssl speed -evp aes-256-gcm -bytes 16384 -seconds 1
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "driver/plugin.h"
#include "provider/shm/shm_device.h"
#include "rpc/session.h"

namespace rrpc {
namespace {

using provider::Protection;

constexpr size_t kLongBytes = 16 << 20;
constexpr size_t kPieceBytes = 16 << 10;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "protection_bench: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.status().to_string());
  return std::move(result).value();
}

double cpu_seconds() {
  rusage used{};
  (void)getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct End : rpc::SessionEvents {
  End(Protection its_mode, std::shared_ptr<provider::CipherFactory> its_ciphers)
      : mode(its_mode), ciphers(std::move(its_ciphers)) {}
  void make(rpc::Role role, std::unique_ptr<provider::CompletionQueue> cq, std::unique_ptr<provider::QueuePair> qp) {
    session = std::make_unique<rpc::Session>(role, endpoint::DeviceContext{*device, pool, registrations}, std::move(cq),
                                             std::move(qp), rpc::SessionOptions(), 1, rpc::HelloFields(), *this);
    if (const Status status = session->start(0); !status.ok()) fail(status.to_string());
  }
  void on_ready() override {
    if (mode != Protection::kNone) session->protect(mode, ciphers, {});
    ready = true;
  }
  void on_closed(const Status& why) override { std::fprintf(stderr, "closed: %s\n", why.to_string().c_str()); }
  void on_call_done(const rpc::ClientCallRef&) override {}
  void on_request(const rpc::ServerCallRef& call) override {
    session->server().reply(call, {.payload = call->payload()}, 0);
  }

  const Protection mode;
  const std::shared_ptr<provider::CipherFactory> ciphers;
  std::unique_ptr<provider::Device> device = provider::create_shm_device();
  endpoint::Pool pool{size_t{256} << 20};
  endpoint::RegistrationCache registrations{*device, pool, 1 << 20};
  std::unique_ptr<rpc::Session> session;
  bool ready = false;
};

class Pair {
 public:
  Pair(Protection mode, const std::shared_ptr<provider::CipherFactory>& ciphers)
      : client_(mode, ciphers), server_(mode, ciphers) {
    const std::string path = "/tmp/rrpc-protection-bench." + std::to_string(getpid());
    const provider::QueuePairConfig config = endpoint::queue_pair_config({});
    const auto listener = must(server_.device->listen(path, {}));
    auto at_client = client_.device->create_completion_queue(1024);
    auto at_server = server_.device->create_completion_queue(1024);
    auto dialled = must(client_.device->open(*at_client, path, config, now_ns() + 10 * kSecond));
    std::unique_ptr<provider::QueuePair> accepted;
    while (accepted == nullptr) accepted = must(listener->accept(*at_server, config));
    client_.make(rpc::Role::kClient, std::move(at_client), std::move(dialled));
    server_.make(rpc::Role::kServer, std::move(at_server), std::move(accepted));
    while (!client_.ready || !server_.ready) turn();
    block_ = must(client_.pool.allocate(kLongBytes));
    std::fill_n(block_.data(), kLongBytes, std::byte{1});
  }

  void call(size_t buffer_bytes) {
    const auto call = std::make_shared<rpc::ClientCall>();
    rpc::CallRequest request;
    request.method = "echo";
    request.payload = payload_;
    if (buffer_bytes > 0) request.buffers.push_back({block_.data(), buffer_bytes, endpoint::kNoOwner, nullptr, {}});
    if (const Status status = client_.session->client().start(call, std::move(request), 0); !status.ok())
      fail(status.to_string());
    while (!call->done()) turn();
    if (!call->status().ok()) fail(call->status().to_string());
  }

 private:
  void turn() {
    (void)server_.session->progress(0);
    (void)client_.session->progress(0);
  }

  End client_;
  End server_;
  endpoint::PoolBlock block_;
  std::array<std::byte, 32> payload_{};
};

struct Cost {
  double wall = 0;  // seconds
  double cpu = 0;
};

Cost median(std::vector<Cost> rounds) {
  const auto middle = [&rounds](double Cost::* which) {
    const auto at = rounds.begin() + static_cast<ptrdiff_t>(rounds.size() / 2);
    std::nth_element(rounds.begin(), at, rounds.end(), [which](auto& a, auto& b) { return a.*which < b.*which; });
    return (*at).*which;
  };
  return {middle(&Cost::wall), middle(&Cost::cpu)};
}

// Of one call, when so many are made.
Cost once(int count, const std::function<void()>& call) {
  const double cpu = cpu_seconds();
  const TimeNs start = now_ns();
  for (int i = 0; i < count; ++i) call();
  return {static_cast<double>(now_ns() - start) / kSecond / count, (cpu_seconds() - cpu) / count};
}

// By turns, as others use the machine: medians of all rounds.
std::vector<Cost> measure(double seconds, int count, const std::vector<std::function<void()>>& calls) {
  std::vector<std::vector<Cost>> rounds(calls.size());
  for (const auto& call : calls) (void)once(3, call);
  const TimeNs end = now_ns() + static_cast<TimeNs>(seconds * kSecond);
  do {
    for (size_t i = 0; i < calls.size(); ++i) rounds[i].push_back(once(count, calls[i]));
  } while (now_ns() < end);
  std::vector<Cost> medians;
  for (auto& each : rounds) medians.push_back(median(std::move(each)));
  return medians;
}

int run(double seconds) {
  const auto ciphers = must(driver::open_ciphers());
  const auto cipher = must(ciphers->make({}, as_bytes("bench"), "bench"));
  std::vector<std::byte> piece(kPieceBytes);
  uint64_t number = 0;
  std::vector<std::function<void()>> small;
  std::vector<std::function<void()>> bulk;
  bulk.emplace_back([&] {
    for (size_t done = 0; done < kLongBytes; done += kPieceBytes) {
      provider::CipherTag tag;
      if (!cipher->seal({0, ++number, 0}, {}, {}, piece, piece.data(), tag)) fail("no memory");
    }
  });
  constexpr std::array kModes = {Protection::kNone, Protection::kSign, Protection::kEncrypt};
  std::vector<std::unique_ptr<Pair>> pairs;
  for (const Protection mode : kModes) {
    Pair& pair = *pairs.emplace_back(std::make_unique<Pair>(mode, ciphers));
    small.emplace_back([&pair] { pair.call(0); });
    bulk.emplace_back([&pair] { pair.call(kLongBytes); });
  }
  const std::vector<Cost> of_small = measure(seconds, 1000, small);
  const std::vector<Cost> of_bulk = measure(4 * seconds, 16, bulk);
  const Cost& pass = of_bulk[0];
  std::printf("AES-256-GCM, one core, 16 KiB at a time: %.2f GB/s, 16 MiB in %.2f ms\n", kLongBytes / pass.wall / 1e9,
              pass.wall * 1e3);
  for (size_t i = 0; i < kModes.size(); ++i) {
    const Cost& of_mode = of_bulk[i + 1];
    std::printf("%-8s small call %.2f us (%+.2f); 16 MiB in %.2f ms, %.2f of the rate of one core, CPU %.2f passes",
                std::string(provider::protection_name(kModes.at(i))).c_str(), of_small[i].wall * 1e6,
                (of_small[i].wall - of_small[0].wall) * 1e6, of_mode.wall * 1e3, pass.wall / of_mode.wall,
                of_mode.cpu / pass.cpu);
    const Cost& plain = of_bulk[1];
    if (i > 0)
      std::printf("; without the copy %.2f and %.2f", pass.wall / (of_mode.wall - plain.wall),
                  (of_mode.cpu - plain.cpu) / pass.cpu);
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace rrpc

int main(int argc, char** argv) { return rrpc::run(argc > 1 ? std::strtod(argv[1], nullptr) : 1.0); }
