// A queue pair whose messages, and whose exposed memory, somebody on the way changes once.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "endpoint/header.h"
#include "session_world.h"

namespace rrpc::rpc {

enum class Attack : uint8_t {
  kFlip,      // a bit of a message
  kTruncate,  // its end is missing
  kExtend,    // something stands behind it
  kReplay,    // an earlier message in its place
  kLeaveOut,  // the next message in its place
  kReflect,   // a message of the other end in its place
  kForge,     // a message of the attacker's in its place
  kMemory,    // bytes of a range that is open to the peer
  kSwap,      // the bytes of two such ranges change places
  kCount,
};

inline const char* name_of(Attack attack) {
  constexpr const char* kNames[] = {"flip",    "truncate", "extend", "replay", "leave out",
                                    "reflect", "forge",    "memory", "swap"};
  return kNames[static_cast<size_t>(attack)];
}

// What an attacker sees of one connection and does to it.
struct Attacker {
  Attacker(uint64_t seed, Attack its_attack, size_t at) : rng(seed), attack(its_attack), at_message(at) {}

  Rng rng;
  const Attack attack;
  size_t at_message;  // of the attacked end: HELLO is 0
  bool done = false;
  size_t changed_at = 0;           // by a flip
  std::vector<std::string> sent;   // by the attacked end
  std::vector<std::string> other;  // by the other one
  std::vector<MutableBytes> open;  // ranges of the attacked end

  // Gives what goes in the message's place; nothing: it is left out.
  std::vector<std::string> pass(const std::string& message) {
    sent.push_back(message);
    if (done || sent.size() <= at_message) return {message};
    if (held_) return done = true, std::vector<std::string>{message};
    std::string changed = message;
    if (!change(changed)) return {message};
    if (attack == Attack::kLeaveOut) return {};
    done = true;
    return {changed};
  }

 private:
  size_t below(size_t end) { return static_cast<size_t>(rng.between(0, static_cast<int64_t>(end) - 1)); }
  void mend_length(std::string& message) {
    const auto body_bytes = static_cast<uint32_t>(message.size() - sizeof(endpoint::MessageHeader));
    if (rng.chance(0.7)) std::memcpy(message.data() + 4, &body_bytes, sizeof(body_bytes));
  }
  static void flip(std::byte& byte, size_t bit) { byte ^= static_cast<std::byte>(1U << bit); }

  // False: there is nothing to do it with, yet.
  bool change(std::string& message) {
    const std::string before = message;
    switch (attack) {
      case Attack::kFlip:
        changed_at = below(message.size());
        flip(reinterpret_cast<std::byte&>(message[changed_at]), below(8));
        break;
      case Attack::kTruncate:
        message.resize(sizeof(endpoint::MessageHeader) + below(message.size() - sizeof(endpoint::MessageHeader)));
        mend_length(message);
        break;
      case Attack::kExtend:
        message.append(1 + below(40), static_cast<char>(rng.next()));
        if (message.size() > 512) return false;
        mend_length(message);
        break;
      case Attack::kReplay:
        message = sent[below(sent.size())];
        break;
      case Attack::kLeaveOut:
        return held_ = true;
      case Attack::kReflect:
        if (other.empty()) return false;
        message = other[below(other.size())];
        break;
      case Attack::kForge:
        for (size_t i = sizeof(endpoint::MessageHeader); i < message.size(); ++i)
          message[i] = static_cast<char>(rng.next());
        message[2] = static_cast<char>(rng.next());
        break;
      case Attack::kMemory: {
        if (open.empty()) return false;
        const MutableBytes range = open[below(open.size())];
        flip(range[below(range.size())], below(8));
        return true;
      }
      case Attack::kSwap:
        return swap_ranges();
      case Attack::kCount:
        break;
    }
    return message != before;
  }
  bool swap_ranges() {
    if (open.size() < 2) return false;
    const size_t first = below(open.size() - 1);
    const MutableBytes one = open[first];
    const MutableBytes two = open[first + 1];
    const size_t length = std::min(one.size(), two.size());
    if (std::ranges::equal(one.first(length), two.first(length))) return false;
    std::swap_ranges(one.begin(), one.begin() + static_cast<ptrdiff_t>(length), two.begin());
    return true;
  }

  bool held_ = false;
};

class TamperedQueuePair : public provider::QueuePair {
 public:
  TamperedQueuePair(std::unique_ptr<provider::QueuePair> inner, provider::Device& device,
                    std::shared_ptr<Attacker> attacker, bool attacked)
      : QueuePair(inner->number()),
        inner_(std::move(inner)),
        attacker_(std::move(attacker)),
        attacked_(attacked),
        memory_(std::make_unique_for_overwrite<std::byte[]>(kMessages * kMessageBytes)),
        region_(device.register_memory({memory_.get(), kMessages * kMessageBytes}).value()) {
    (void)inner_->adopt(*region_);
  }

  provider::QueuePairState state() const override { return inner_->state(); }
  const Status& error() const override { return inner_->error(); }
  const provider::QueuePairLimits& limits() const override { return inner_->limits(); }
  Status start(Bytes private_data) override { return inner_->start(private_data); }
  Bytes peer_private_data() const override { return inner_->peer_private_data(); }
  std::string peer_description() const override { return inner_->peer_description(); }
  std::string local_description() const override { return inner_->local_description(); }
  std::string_view bulk_method() const override { return inner_->bulk_method(); }
  Status post_receive(const provider::ReceiveRequest& request) override { return inner_->post_receive(request); }
  Status post_receives(std::span<const provider::ReceiveRequest> requests) override {
    return inner_->post_receives(requests);
  }
  bool revoke(uint32_t rkey) override {
    const auto range = ranges_.find(rkey);
    if (attacked_ && range != ranges_.end())
      std::erase_if(attacker_->open, [&](MutableBytes one) { return one.data() == range->second; });
    return inner_->revoke(rkey);
  }
  bool revoking(uint32_t rkey) const override { return inner_->revoking(rkey); }
  provider::ExposureKind exposure_kind() const override { return inner_->exposure_kind(); }
  bool reaches_pool() const override { return inner_->reaches_pool(); }
  Status adopt(const provider::MemoryRegion& region) override { return inner_->adopt(region); }
  void disconnect(const std::string& reason) override { inner_->disconnect(reason); }

  Result<uint32_t> expose(const provider::MemoryRegion& region, const std::byte* address, size_t length_bytes,
                          uint32_t access) override {
    RRPC_ASSIGN_OR_RETURN(const uint32_t rkey, inner_->expose(region, address, length_bytes, access));
    auto* const data = const_cast<std::byte*>(address);
    if (attacked_) attacker_->open.emplace_back(data, length_bytes);
    ranges_[rkey] = data;
    return rkey;
  }
  Status post_send(std::span<const provider::WorkRequest> requests) override {
    for (const provider::WorkRequest& request : requests) {
      if (request.opcode != provider::Opcode::kSend) {
        RRPC_RETURN_IF_ERROR(inner_->post_send({&request, 1}));
        continue;
      }
      std::string message;
      for (const provider::Sge& sge : request.sges)
        message.append(reinterpret_cast<const char*>(sge.address), sge.length_bytes);
      if (!attacked_) attacker_->other.push_back(message);
      for (const std::string& passed : attacked_ ? attacker_->pass(message) : std::vector<std::string>{message})
        RRPC_RETURN_IF_ERROR(post(request, passed));
    }
    return {};
  }

 private:
  static constexpr size_t kMessages = 256;
  static constexpr size_t kMessageBytes = 8192;

  Status post(provider::WorkRequest request, const std::string& message) {
    std::byte* const slot = memory_.get() + next_++ % kMessages * kMessageBytes;
    std::memcpy(slot, message.data(), message.size());
    const provider::Sge sge{slot, static_cast<uint32_t>(message.size()), region_.get()};
    request.sges = {&sge, 1};
    request.inline_data = false;
    return inner_->post_send({&request, 1});
  }

  const std::unique_ptr<provider::QueuePair> inner_;
  const std::shared_ptr<Attacker> attacker_;
  const bool attacked_;
  const std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<provider::MemoryRegion> region_;
  std::map<uint32_t, std::byte*> ranges_;
  size_t next_ = 0;
};

}  // namespace rrpc::rpc
