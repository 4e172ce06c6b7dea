// Which of a process's many connections have something for their poller: a bit for each, in memory that it writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace rrpc::provider {

// What wakes one that sleeps on a word in memory.
enum WokenBy : uint32_t { kByNothing = 0, kByAll = 1, kBySolicited = 2 };

// Whether the sleeper is to be woken for the message that has just landed; only once.
inline bool claims_wake_up(std::atomic<uint32_t>& armed, bool solicited) {
  const uint32_t woken_by = armed.load(std::memory_order_seq_cst);
  if (woken_by == kByNothing || (woken_by == kBySolicited && !solicited)) return false;
  return armed.exchange(kByNothing, std::memory_order_seq_cst) != kByNothing;
}

// As it lies in that memory.
struct ReadyPage {
  static constexpr uint32_t kBitsPerWord = 64;
  static constexpr uint32_t kWords = 504;
  static constexpr uint32_t kBits = kWords * kBitsPerWord;

  alignas(64) std::atomic<uint32_t> armed;  // WokenBy: the poller sleeps
  alignas(64) std::atomic<uint64_t> words[kWords];

  // Whether the poller is to be woken.
  bool raise(uint32_t bit, bool solicited = true) {
    words[bit / kBitsPerWord].fetch_or(uint64_t{1} << bit % kBitsPerWord, std::memory_order_seq_cst);
    return claims_wake_up(armed, solicited);
  }
};
static_assert(sizeof(ReadyPage) == 4096 && std::atomic<uint64_t>::is_always_lock_free);

// The poller's side.
class ReadyBits : public std::enable_shared_from_this<ReadyBits> {
 public:
  static constexpr uint32_t kBitsPerWord = ReadyPage::kBitsPerWord;

  virtual ~ReadyBits() = default;
  ReadyBits(const ReadyBits&) = delete;
  ReadyBits& operator=(const ReadyBits&) = delete;

  // Those raised since. What was done before a bit was raised is seen by whoever takes it.
  uint64_t take(uint32_t word) {
    std::atomic<uint64_t>& raised = page_.words[word];
    return raised.load(std::memory_order_relaxed) == 0 ? 0 : raised.exchange(0, std::memory_order_seq_cst);
  }
  // Raises again what was taken and not seen to.
  void put_back(uint32_t word, uint64_t raised) { page_.words[word].fetch_or(raised, std::memory_order_seq_cst); }
  // That hold bits which are in use.
  uint32_t word_count() const { return word_count_.load(std::memory_order_acquire); }
  // For solicited messages: a connection that is to be told of all is armed itself. False: a bit is raised already.
  bool arm() {
    page_.armed.store(kBySolicited, std::memory_order_seq_cst);
    for (uint32_t word = 0; word < word_count(); ++word)
      if (page_.words[word].load(std::memory_order_seq_cst) != 0) return false;
    return true;
  }
  bool armed() const { return page_.armed.load(std::memory_order_seq_cst) != kByNothing; }
  void disarm() { page_.armed.store(kByNothing, std::memory_order_relaxed); }
  // What wakes the poller, which sleeps on wait handles too: whoever else looked at them first may have heard the bell.
  void on_bell(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }
  // By the provider, when the process has rung at one of its connections.
  void bell_rang() {
    if (armed()) return;  // it was for somebody else
    std::lock_guard lock(mutex_);
    if (wake_) wake_();
  }

 protected:
  explicit ReadyBits(ReadyPage& page) : page_(page) {}
  void use_words(uint32_t count) { word_count_.store(count, std::memory_order_release); }

 private:
  ReadyPage& page_;
  std::mutex mutex_;
  std::function<void()> wake_;
  std::atomic<uint32_t> word_count_{0};
};

}  // namespace rrpc::provider
