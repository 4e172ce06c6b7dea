#include "base/fault_in.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/helper_thread.h"
#include "base/page_choice.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rrpc {
namespace {

constexpr size_t kPieceBytes = 2 << 20;  // a huge page
constexpr uint64_t kSamplesEvery = 16;   // large blocks: both kinds are tried

PageChoice g_choice;
std::atomic<uint64_t> g_blocks{0};

void advise(std::byte* data, size_t length_bytes, bool huge) {
  (void)madvise(data, length_bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// Brings in one piece and remembers how long it took.
void bring_in(std::byte* piece, size_t length_bytes, bool huge) {
  const TimeNs start = now_ns();
  (void)madvise(piece, length_bytes, MADV_POPULATE_WRITE);
  if (length_bytes != kPieceBytes) return;
  const TimeNs taken = now_ns() - start;
  huge ? g_choice.took_huge(taken) : g_choice.took_small(taken);
}

}  // namespace

// From the end on: whoever writes from the beginning meets it in the middle.
void fault_in(std::byte* data, size_t length_bytes) {
  bool huge = g_choice.huge();
  advise(data, length_bytes, huge);
  for (size_t end = length_bytes; end > 0;) {
    const size_t start = (end - 1) / kPieceBytes * kPieceBytes;
    bring_in(data + start, end - start, huge);
    end = start;
    if (!huge || g_choice.huge()) continue;
    huge = false;
    advise(data, end, huge);
  }
}

void fault_in_behind(std::byte* data, size_t length_bytes, std::shared_ptr<const void> hold) {
  const bool samples = g_blocks.fetch_add(1) % kSamplesEvery == 0;
  for (const bool huge : {false, true}) {
    const size_t piece = std::min(length_bytes, kPieceBytes);
    const bool chosen = samples ? huge : g_choice.huge();
    advise(data, piece, chosen);
    bring_in(data, piece, chosen);
    data += piece;
    length_bytes -= piece;
    if (length_bytes == 0) return;
  }
  // Where no thread is to be had the first touch does it.
  (void)run_behind(Behind::kMemory, [data, length_bytes, hold = std::move(hold)] { fault_in(data, length_bytes); });
}

}  // namespace rrpc
