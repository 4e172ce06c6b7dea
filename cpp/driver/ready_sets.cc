#include "driver/ready_sets.h"

#include <utility>

namespace rrpc::driver {

void ReadySets::add(const std::shared_ptr<provider::ReadyBits>& bits, uint32_t bit, uint64_t connection_id) {
  sets_.reserve(sets_.size() + 1);  // memory may end here, and leaves both as they were
  const auto [place, is_new] = places_.try_emplace(bits.get(), sets_.size());
  if (is_new) sets_.push_back({bits, {}});
  std::vector<uint64_t>& ids = sets_[place->second].ids;
  if (bit >= ids.size()) ids.resize(size_t{bit} + 1);
  ids[bit] = connection_id;
}

bool ReadySets::arm() {
  bool quiet = true;
  for (Set& set : sets_) quiet = set.bits->arm() && quiet;
  return quiet;
}

void ReadySets::disarm() {
  for (Set& set : sets_) set.bits->disarm();
}

void ReadySets::tidy() {
  if (sets_.empty()) return;
  const size_t place = next_to_tidy_++ % sets_.size();
  if (sets_[place].bits.use_count() > 1) return;
  places_.erase(sets_[place].bits.get());
  if (place + 1 < sets_.size()) {
    sets_[place] = std::move(sets_.back());
    places_[sets_[place].bits.get()] = place;
  }
  sets_.pop_back();
}

}  // namespace rrpc::driver
