// Two processes pass a counter back and forth: `pingpong spin|wake SECONDS` prints p50 and p99 of the
// round trip in nanoseconds. spin: both poll shared memory. wake: both sleep on an eventfd.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct alignas(64) Line {
  std::atomic<uint64_t> value{0};
};

struct Shared {
  Line ping, pong;
};

constexpr uint64_t kStop = ~uint64_t{0};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void await_value(const Line& line, uint64_t wanted_or_stop, uint64_t& seen) {
  while ((seen = line.value.load(std::memory_order_acquire)) != wanted_or_stop && seen != kStop) relax();
}

void spin_child(Shared& shared) {
  for (uint64_t turn = 1, seen = 0;; ++turn) {
    await_value(shared.ping, turn, seen);
    if (seen == kStop) return;
    shared.pong.value.store(turn, std::memory_order_release);
  }
}

void wake_child(int ping, int pong) {
  uint64_t value = 0;
  while (read(ping, &value, sizeof value) == sizeof value && value == 1) {
    if (write(pong, &value, sizeof value) != sizeof value) return;
  }
}

template <typename RoundTrip>
void measure(double seconds, RoundTrip round_trip) {
  std::vector<int64_t> times_ns;
  times_ns.reserve(1 << 22);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (auto before = Clock::now(); before < end && times_ns.size() < times_ns.capacity();) {
    round_trip();
    const auto after = Clock::now();
    times_ns.push_back((after - before).count());
    before = after;
  }
  std::sort(times_ns.begin(), times_ns.end());
  std::printf("%lld %lld\n", static_cast<long long>(times_ns[times_ns.size() / 2]),
              static_cast<long long>(times_ns[times_ns.size() * 99 / 100]));
}

}  // namespace

int main(int argc, char** argv) {
  const bool spin = argc == 3 && std::string(argv[1]) == "spin";
  const double seconds = argc == 3 ? std::atof(argv[2]) : 1.0;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& shared = *new (memory) Shared;
  const int ping = eventfd(0, 0), pong = eventfd(0, 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    spin ? spin_child(shared) : wake_child(ping, pong);
    _exit(0);
  }
  uint64_t turn = 0, value = 1;
  if (spin) {
    measure(seconds, [&] {
      shared.ping.value.store(++turn, std::memory_order_release);
      await_value(shared.pong, turn, value);
    });
    shared.ping.value.store(kStop, std::memory_order_release);
  } else {
    measure(seconds, [&] {
      value = 1;
      if (write(ping, &value, sizeof value) < 0 || read(pong, &value, sizeof value) < 0) std::exit(1);
    });
    value = 2;
    if (write(ping, &value, sizeof value) < 0) return 1;
  }
  return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
