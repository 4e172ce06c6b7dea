// Work request ids: what kind, and a slot or (for sends) how many sends the completion retires.
#pragma once

#include <cstdint>

namespace rrpc::endpoint {

constexpr uint64_t kTagReceive = 1ULL << 56;
constexpr uint64_t kTagSend = 2ULL << 56;
constexpr uint64_t kTagBulk = 3ULL << 56;
constexpr uint64_t kTagMask = 0xffULL << 56;

}  // namespace rrpc::endpoint
