#include "provider/shm/borrowed.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "base/at_fork.h"
#include "provider/shm/fork_guard.h"

namespace rrpc::provider::shm {

// A list through the ranges themselves.
struct BorrowedRanges {
  std::mutex mutex;
  ShmBorrowedRange* first = nullptr;

  void add(ShmBorrowedRange& range) {
    std::lock_guard lock(mutex);
    range.next_ = first;
    if (first != nullptr) first->previous_ = &range;
    first = &range;
  }
  void remove(ShmBorrowedRange& range) {
    std::lock_guard lock(mutex);
    (range.previous_ != nullptr ? range.previous_->next_ : first) = range.next_;
    if (range.next_ != nullptr) range.next_->previous_ = range.previous_;
  }

  // The pages of a range: its neighbours on them are other bytes of the same file.
  struct Pages {
    explicit Pages(const ShmBorrowedRange& range) {
      const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      const size_t before = reinterpret_cast<uintptr_t>(range.data()) % page;
      begin = range.data() - before;
      length = (before + range.size() + page - 1) / page * page;
    }
    std::byte* begin;
    size_t length;
  };

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
};

namespace {

BorrowedRanges& g_ranges = *new BorrowedRanges;  // never destroyed: a fork may come at any time until the end

const AtFork kRangesAtFork{[] { g_ranges.before_fork(); }, [] { g_ranges.after_fork_in_parent(); },
                           [] { g_ranges.after_fork_in_child(); }};

}  // namespace

// Nothing is given back until the fork is over.
void BorrowedRanges::before_fork() {
  mutex.lock();
  for (ShmBorrowedRange* range = first; range != nullptr; range = range->next_) {
    const Pages pages(*range);
    void* const copy = mmap(nullptr, pages.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    range->copy_ = copy == MAP_FAILED ? nullptr : static_cast<std::byte*>(copy);
    if (range->copy_ != nullptr) std::memcpy(range->copy_, pages.begin, pages.length);
  }
}

void BorrowedRanges::after_fork_in_parent() {
  for (ShmBorrowedRange* range = first; range != nullptr; range = range->next_) {
    std::byte* const copy = std::exchange(range->copy_, nullptr);
    if (copy != nullptr) munmap(copy, Pages(*range).length);
  }
  mutex.unlock();
}

void BorrowedRanges::after_fork_in_child() {
  for (ShmBorrowedRange* range = first; range != nullptr; range = range->next_) {
    const Pages pages(*range);
    std::byte* const copy = std::exchange(range->copy_, nullptr);
    const bool moved =
        copy != nullptr && mprotect(copy, pages.length, PROT_READ) == 0 &&
        mremap(copy, pages.length, pages.length, MREMAP_MAYMOVE | MREMAP_FIXED, pages.begin) != MAP_FAILED;
    if (!moved) mprotect(pages.begin, pages.length, PROT_NONE);  // a fault, sooner than what the owner writes next
  }
  mutex.unlock();
}

ShmBorrowedRange::ShmBorrowedRange(std::shared_ptr<Slab> slab, std::byte* data, size_t size,
                                   std::shared_ptr<std::atomic<uint32_t>> word, uint32_t generation)
    : BorrowedRange(data, size),
      slab_(std::move(slab)),
      word_(std::move(word)),
      generation_(generation),
      fork_generation_(fork_generation()) {
  g_ranges.add(*this);
}

std::unique_ptr<BorrowedRange> ShmBorrowedRange::take(std::shared_ptr<Slab> slab, std::byte* data, size_t size,
                                                      std::shared_ptr<std::atomic<uint32_t>> word,
                                                      uint32_t generation) {
  std::unique_ptr<ShmBorrowedRange> range(
      new ShmBorrowedRange(std::move(slab), data, size, std::move(word), generation));
  uint32_t expected = lend_word(generation, kOffered);
  if (!range->word_->compare_exchange_strong(expected, lend_word(generation, kTaken), std::memory_order_acq_rel))
    return nullptr;
  range->taken_ = true;
  return range;
}

// A child gives nothing back: the parent reads it still.
ShmBorrowedRange::~ShmBorrowedRange() {
  g_ranges.remove(*this);
  if (!taken_ || fork_generation_ != fork_generation()) return;
  uint32_t expected = lend_word(generation_, kTaken);
  word_->compare_exchange_strong(expected, lend_word(generation_, kReturned), std::memory_order_acq_rel);
}

}  // namespace rrpc::provider::shm
