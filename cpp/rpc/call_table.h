// Calls by id: open addressing, so that a call which comes and goes costs no memory of its own. The hash is
// multiply-shift with a random odd factor (Dietzfelbinger et al., 1997): a peer that chooses its ids can't choose who
// collides. Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace rrpc::rpc {

// `Ref`: a counted reference. No call has the id 0.
template <typename Ref>
class CallTable {
 public:
  static constexpr size_t kNowhere = SIZE_MAX;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Null: there is none.
  Ref find(uint64_t id) const {
    if (id == 0 || size_ == 0) return nullptr;
    const Entry& entry = entries_[place_for(id)];
    return entry.id == id ? entry.call : nullptr;
  }
  // One that is there stays.
  void add(uint64_t id, const Ref& call) {
    if (size_ * 2 >= count_) [[unlikely]]
      grow();
    Entry& entry = entries_[place_for(id)];
    if (entry.id == id) return;
    entry.id = id;
    entry.call = call;
    ++size_;
  }
  void erase(uint64_t id) {
    if (id == 0 || size_ == 0) return;
    const size_t place = place_for(id);
    if (entries_[place].id == id) (void)take(place);  // which ends last
  }
  // Where take() finds it, until the table changes; kNowhere: there is none.
  size_t place_of(uint64_t id) const {
    if (id == 0 || size_ == 0) return kNowhere;
    const size_t place = place_for(id);
    return entries_[place].id == id ? place : kNowhere;
  }
  const Ref& at(size_t place) const { return entries_[place].call; }
  Ref take(size_t place) noexcept {
    Ref taken = std::move(entries_[place].call);
    entries_[place].id = 0;
    --size_;
    if (entries_[(place + 1) & mask()].id != 0) close_gap(place);
    if (count_ > kEntriesMin && size_ * 16 < count_) [[unlikely]]
      shrink();
    return taken;
  }
  // 0: there is none.
  uint64_t lowest_id() const {
    uint64_t lowest = 0;
    for (const Entry& entry : entries_)
      if (entry.id != 0 && (lowest == 0 || entry.id < lowest)) lowest = entry.id;
    return lowest;
  }
  // Calls nothing that changes the table.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : entries_)
      if (entry.id != 0) visit(entry.call);
  }

 private:
  static constexpr size_t kEntriesMin = 32;
  struct Entry {
    uint64_t id = 0;  // 0: it is free
    Ref call;
  };

  size_t mask() const { return count_ - 1; }
  size_t home(uint64_t id) const { return static_cast<size_t>((id * factor_) >> shift_); }
  static uint64_t random_factor() {
    static const uint64_t chosen = (uint64_t{std::random_device()()} << 32 | std::random_device()()) | 1;
    return chosen;
  }
  // Where it is, or goes.
  size_t place_for(uint64_t id) const {
    size_t place = home(id);
    while (entries_[place].id != 0 && entries_[place].id != id) place = (place + 1) & mask();
    return place;
  }
  // Moves those behind one that was taken out up that would not be found any more.
  [[gnu::noinline]] void close_gap(size_t gap) {
    for (size_t place = (gap + 1) & mask(); entries_[place].id != 0; place = (place + 1) & mask()) {
      const size_t away = (place - home(entries_[place].id)) & mask();
      if (away < ((place - gap) & mask())) continue;
      entries_[gap] = std::exchange(entries_[place], {});
      gap = place;
    }
  }
  [[gnu::noinline]] void grow() { resize(count_ == 0 ? kEntriesMin : count_ * 2); }
  // It needn't: without memory for a small table the large one stays.
  [[gnu::noinline]] void shrink() noexcept {
    try {
      resize(std::max(kEntriesMin, count_ / 4));
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): nothing has changed
    }
  }
  void resize(size_t count) {
    std::vector<Entry> before(count);
    before.swap(entries_);
    count_ = count;
    shift_ = 64 - std::countr_zero(count);
    for (Entry& entry : before)
      if (entry.id != 0) entries_[place_for(entry.id)] = std::move(entry);
  }

  const uint64_t factor_ = random_factor();
  std::vector<Entry> entries_;  // a power of two of them, at most half of them full
  size_t count_ = 0;            // of them
  int shift_ = 0;
  size_t size_ = 0;
};

}  // namespace rrpc::rpc
