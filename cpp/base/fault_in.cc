#include "base/fault_in.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/page_choice.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rrpc {
namespace {

constexpr size_t kPieceBytes = 2 << 20;  // a huge page
constexpr uint64_t kSamplesEvery = 16;   // large blocks: both kinds are tried

// Brings in one piece and reports how long it took.
void bring_in(PageChoice& choice, std::byte* piece, size_t length_bytes, bool huge) {
  const TimeNs start = now_ns();
  (void)madvise(piece, length_bytes, MADV_POPULATE_WRITE);
  if (length_bytes != kPieceBytes) return;
  const TimeNs taken = now_ns() - start;
  huge ? choice.took_huge(taken) : choice.took_small(taken);
}

void advise(std::byte* data, size_t length_bytes, bool huge) {
  (void)madvise(data, length_bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

struct Job {
  std::byte* data = nullptr;
  size_t length_bytes = 0;
  std::shared_ptr<const void> hold;
};

struct Helper {
  PageChoice choice;
  std::atomic<uint64_t> blocks{0};
  std::mutex mutex;
  std::deque<Job> jobs;
  bool running = false;
};

std::atomic<Helper*> g_helper{nullptr};  // never destroyed: its thread may outlive static destruction

Helper& helper() {
  // A forked child has no such thread.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_helper.store(new Helper); });
  (void)registered;
  Helper* existing = g_helper.load();
  if (existing != nullptr) return *existing;
  auto made = std::make_unique<Helper>();
  if (g_helper.compare_exchange_strong(existing, made.get())) return *made.release();
  return *existing;
}

void bring_in_from_the_end(PageChoice& choice, const Job& job) {
  bool huge = choice.huge();
  advise(job.data, job.length_bytes, huge);
  for (size_t end = job.length_bytes; end > 0;) {
    const size_t start = (end - 1) / kPieceBytes * kPieceBytes;
    bring_in(choice, job.data + start, end - start, huge);
    end = start;
    if (!huge || choice.huge()) continue;
    huge = false;
    advise(job.data, end, huge);
  }
}

void run(Helper& here) {
  for (;;) {
    Job job;
    {
      std::lock_guard lock(here.mutex);
      here.running = !here.jobs.empty();
      if (!here.running) return;
      job = std::move(here.jobs.front());
      here.jobs.pop_front();
    }
    bring_in_from_the_end(here.choice, job);
  }
}

}  // namespace

void fault_in(std::byte* data, size_t length_bytes) {
  bring_in_from_the_end(helper().choice, {data, length_bytes, {}});
}

void fault_in_behind(std::byte* data, size_t length_bytes, std::shared_ptr<const void> hold) {
  Helper& here = helper();
  const bool samples = here.blocks.fetch_add(1) % kSamplesEvery == 0;
  for (const bool huge : {false, true}) {
    const size_t piece = std::min(length_bytes, kPieceBytes);
    const bool chosen = samples ? huge : here.choice.huge();
    advise(data, piece, chosen);
    bring_in(here.choice, data, piece, chosen);
    data += piece;
    length_bytes -= piece;
    if (length_bytes == 0) return;
  }
  std::lock_guard lock(here.mutex);
  here.jobs.push_back({data, length_bytes, std::move(hold)});
  if (std::exchange(here.running, true)) return;
  try {
    std::thread([&here] { run(here); }).detach();
  } catch (const std::system_error&) {  // no thread to be had: the first touch does it
    here.running = false;
    here.jobs.clear();
  }
}

}  // namespace rrpc
