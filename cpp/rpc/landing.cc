#include "rpc/landing.h"

#include <algorithm>

namespace rrpc::rpc {
namespace {

// More would only let what came later take the path of what came first; small ones share it.
constexpr size_t kFetchesMax = 4;
constexpr size_t kFetchBytesMax = 4 << 20;

}  // namespace

bool borrow_lent(endpoint::Endpoint& endpoint, std::span<const endpoint::Descriptor> descriptors, Blocks& blocks,
                 size_t except) {
  if (std::ranges::none_of(descriptors, &endpoint::Descriptor::lent)) return blocks.clear(), false;
  bool all = true;
  size_t count = 0;
  for (; !descriptors.empty(); ++count) {
    const std::span<const endpoint::Descriptor> pieces = first_buffer(descriptors);
    descriptors = descriptors.subspan(pieces.size());
    if (count == blocks.size()) blocks.emplace_back();
    endpoint::ReceivedBlock& block = blocks[count];
    if (block && block.size() == pieces.front().length_bytes) continue;  // borrowed before
    block = count == except ? endpoint::ReceivedBlock() : endpoint.borrow(pieces.front());
    all = all && block;
  }
  blocks.resize(count);
  return all;
}

size_t landing_bytes(std::span<const endpoint::Descriptor> descriptors, const Blocks& blocks) {
  size_t total = 0;
  for (size_t i = 0; !descriptors.empty(); ++i) {
    const std::span<const endpoint::Descriptor> pieces = first_buffer(descriptors);
    descriptors = descriptors.subspan(pieces.size());
    if (i >= blocks.size() || !blocks[i]) total += endpoint::Pool::block_bytes(total_bytes(pieces));
  }
  return total;
}

Status Landing::check(size_t bytes) const {
  const size_t limit = account_->limit();
  if (bytes <= limit) return {};
  return resource_exhausted("landing_bytes_max: " + std::to_string(bytes) +
                            " bytes to be fetched for one call, the limit is " + std::to_string(limit) +
                            "; raise landing_bytes_max (rrpc-serve --landing-bytes-max), and for more than that the "
                            "pool limit (rrpc.set_pool_limit(), --pool-limit)");
}

bool Landing::may_start() const { return active_ < kFetchesMax || active_bytes_ < kFetchBytesMax; }

bool Landing::enter(size_t bytes, Charge& charge) {
  if (!queue_.empty() || !may_start() || !account_->take(bytes)) return false;
  charge = Charge(account_, bytes);
  fetch_begins(bytes);
  return true;
}

uint64_t Landing::wait(size_t bytes, std::function<void(Charge, TimeNs)> go, bool first) {
  const uint64_t ticket = next_ticket_++;
  Waiting waiting{ticket, bytes, std::move(go)};
  if (first)
    queue_.push_front(std::move(waiting));
  else
    queue_.push_back(std::move(waiting));
  if (first) account_->stop_waiting();  // for the one that was first
  return ticket;
}

void Landing::withdraw(uint64_t ticket) {
  const auto it = std::ranges::find(queue_, ticket, &Waiting::ticket);
  if (it == queue_.end()) return;
  if (it == queue_.begin()) account_->stop_waiting();
  queue_.erase(it);
}

size_t Landing::pump(TimeNs now) {
  size_t started = 0;
  while (runnable()) {
    if (!account_->take_or_wait(queue_.front().bytes)) break;
    const Waiting next = std::move(queue_.front());
    queue_.pop_front();
    fetch_begins(next.bytes);
    ++started;
    next.go(Charge(account_, next.bytes), now);
  }
  return started;
}

void Landing::clear() {
  queue_.clear();
  account_->stop_waiting();
}

}  // namespace rrpc::rpc
