// Whether keys were chosen so that their hashes collide in an open-addressing table like CPython's dict and set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rrpc {

// On average, over all keys and every size that the table passes through: random hashes need less than 2, and the
// regular ones of numbers (multiples of a power of two) at most a dozen.
constexpr size_t kProbesPerKeyMax = 64;

// Inserts the hashes, in their order, into a table that grows as CPython's dict does (Objects/dictobject.c,
// "perturb"), and counts the slots looked at. Equal hashes are taken for different keys. What collides in a larger
// table or in a set, collides here too: each of the three walks the same low bits. Stops when there are too many.
bool hashes_collide(std::span<const int64_t> hashes);

}  // namespace rrpc
