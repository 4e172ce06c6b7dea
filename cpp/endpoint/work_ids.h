// Work request ids: what kind, and a slot or (for sends) how many sends the completion retires. And how many
// completions an endpoint takes in one poll.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rrpc::endpoint {

constexpr size_t kCompletionsMax = 16;
constexpr int kTagShift = 56;
constexpr uint64_t kTagReceive = 1ULL << kTagShift;
constexpr uint64_t kTagSend = 2ULL << kTagShift;
constexpr uint64_t kTagBulk = 3ULL << kTagShift;
constexpr uint64_t kTagMask = 0xffULL << kTagShift;

}  // namespace rrpc::endpoint
