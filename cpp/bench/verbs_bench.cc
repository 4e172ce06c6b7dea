// The driver alone, without Python: what `make bench-vm` sets beside perftest.
//   verbs_bench serve ADDRESS POLL                            prints "listening on ADDRESS", serves until killed
//   verbs_bench echo  ADDRESS POLL COUNT                      prints the median round trip in us, one in flight
//   verbs_bench send  ADDRESS POLL COUNT BYTES                the same of calls with an argument of so many bytes
//   verbs_bench fetch ADDRESS POLL COUNT BYTES IN_FLIGHT      prints MB/s of results fetched
// POLL is busy, event or adaptive.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/client.h"
#include "driver/server.h"

namespace rrpc::driver {
namespace {

const std::atomic<bool> kUninterrupted{false};
constexpr char kPayload[] = "0123456789abcdef0123456789abcde";  // 32 bytes with its end
constexpr TimeNs kCallTimeout = 60 * kSecond;

[[noreturn]] void fail(const Status& status) {
  std::fprintf(stderr, "verbs_bench: %s\n", status.to_string().c_str());
  std::exit(1);
}

Options options_for(std::string_view poll) {
  Options options;
  if (poll == "busy") options.poll = PollMode::kBusy;
  if (poll == "event") options.poll = PollMode::kEvent;
  return options;
}

size_t size_named_in(Bytes payload) { return std::strtoull(std::string(as_text(payload)).c_str(), nullptr, 10); }

// "echo" gives the payload back, "fetch" as many bytes as the payload says, from memory that was touched before.
[[noreturn]] void serve(const std::string& address, const Options& options) {
  Server server(options);
  const auto bound = server.listen(address);
  if (!bound.ok()) fail(bound.status());
  std::printf("listening on %s\n", bound->c_str());
  std::fflush(stdout);
  endpoint::PoolBlock results;
  Work work;
  while (true) {
    if (server.next(work, kNever, kUninterrupted) != NextResult::kWork) continue;
    rpc::Reply reply;
    if (work.call->method() == "echo") {
      reply.payload = work.call->payload();
    } else {
      const size_t length_bytes = size_named_in(work.call->payload());
      if (results.size() < length_bytes) {
        auto block = endpoint::Pool::process().allocate(length_bytes);
        if (!block.ok()) fail(block.status());
        results = std::move(*block);
        std::fill_n(results.data(), length_bytes, std::byte{7});
      }
      endpoint::Buffer buffer;
      buffer.data = results.data();
      buffer.length_bytes = length_bytes;
      reply.buffers.push_back(std::move(buffer));
    }
    if (const auto answered = server.reply(work.handle, std::move(reply)); !answered.ok()) fail(answered.status());
    work = Work();
  }
}

std::unique_ptr<Client> connect(const std::string& address, const Options& options) {
  auto client = Client::connect(address, options, deadline_after(now_ns(), kCallTimeout));
  if (!client.ok()) fail(client.status());
  return std::move(*client);
}

rpc::ClientCallRef start(Client& client, std::string_view method, std::string_view payload,
                         MutableBytes argument = {}) {
  auto call = std::make_shared<rpc::ClientCall>();
  rpc::CallRequest request;
  if (!argument.empty()) request.buffers.push_back({argument.data(), argument.size(), endpoint::kNoOwner, nullptr, {}});
  request.method = method;
  request.payload = as_bytes(payload);
  request.deadline = deadline_after(now_ns(), kCallTimeout);
  if (const Status status = client.start(call, std::move(request)); !status.ok()) fail(status);
  return call;
}

void finish(Client& client, const rpc::ClientCallRef& call) {
  while (client.wait(call, kNever, kUninterrupted) == WaitResult::kInterrupted) {
  }
  if (!call->status().ok()) fail(call->status());
}

void echo(Client& client, int count, size_t argument_bytes = 0) {
  std::vector<std::byte> argument(argument_bytes, std::byte{7});
  std::vector<double> round_trips_us;
  for (int i = -count / 10; i < count; ++i) {
    const TimeNs from = now_ns();
    finish(client, start(client, "echo", {kPayload, sizeof(kPayload)}, argument));
    if (i >= 0) round_trips_us.push_back(static_cast<double>(now_ns() - from) / 1e3);
  }
  std::sort(round_trips_us.begin(), round_trips_us.end());
  std::printf("%.2f\n", round_trips_us[round_trips_us.size() / 2]);
}

void fetch(Client& client, int count, const std::string& size, int in_flight) {
  std::deque<rpc::ClientCallRef> calls;
  const auto fetch_all = [&](int calls_in_all) {
    for (int i = 0; i < calls_in_all; ++i) {
      calls.push_back(start(client, "fetch", size));
      if (static_cast<int>(calls.size()) < in_flight) continue;
      finish(client, calls.front());
      calls.pop_front();
    }
    for (; !calls.empty(); calls.pop_front()) finish(client, calls.front());
  };
  fetch_all(in_flight);  // touches and registers what the results land in
  const TimeNs from = now_ns();
  fetch_all(count);
  const double bytes = std::strtod(size.c_str(), nullptr) * count;
  std::printf("%.2f\n", bytes * 1e3 / static_cast<double>(now_ns() - from));
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) return 2;
  const std::string& goal = arguments[0];
  const Options options = options_for(arguments[2]);
  if (goal == "serve") serve(arguments[1], options);
  const auto number = [&](size_t index) {
    return static_cast<int>(std::strtol(arguments[index].c_str(), nullptr, 10));
  };
  const size_t needed = goal == "echo" ? 4 : goal == "send" ? 5 : 6;
  if (arguments.size() != needed || number(3) < 1) return 2;
  const auto client = connect(arguments[1], options);
  if (goal == "echo") echo(*client, number(3));
  if (goal == "send") echo(*client, number(3), static_cast<size_t>(number(4)));
  if (goal == "fetch") fetch(*client, number(3), arguments[4], number(5));
  return 0;
}

}  // namespace
}  // namespace rrpc::driver

int main(int argc, char** argv) {
  const int status = rrpc::driver::run({argv + 1, argv + argc});
  if (status == 2) std::fputs("usage: see the head of cpp/bench/verbs_bench.cc\n", stderr);
  return status;
}
