// How the bytes of an exposed range are proved in a protected connection: cut into pieces, each with a tag of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "provider/protection.h"

namespace rrpc::endpoint {

constexpr size_t kSealPieceBytes = 128 << 10;  // of all pieces but the last, unless these are too many
constexpr uint32_t kSealPiecesMax = 256;       // of a buffer
constexpr uint32_t kBodySealPiecesMax = 16;    // of the body of a message, whose tags fit into any slot
// AES-GCM takes less than 2^36 bytes at a time.
constexpr uint64_t kSealedBytesMax = 1ULL << 39;

// The length of a piece, and how many there are. Both ends come to the same.
constexpr uint64_t seal_piece_bytes(uint64_t length_bytes, uint32_t pieces_max) {
  uint64_t piece = kSealPieceBytes;
  while (piece * pieces_max < length_bytes) piece *= 2;
  return piece;
}
constexpr size_t seal_piece_count(uint64_t length_bytes, uint32_t pieces_max) {
  const uint64_t piece = seal_piece_bytes(length_bytes, pieces_max);
  return static_cast<size_t>((length_bytes + piece - 1) / piece);
}

// Stands behind the descriptor of the range, in a message that is protected itself.
struct Seal {
  uint64_t number = 0;  // of this range among all of its owner's: its nonce
  uint32_t pieces_max = kSealPiecesMax;
  std::vector<provider::CipherTag> tags;
};
using SealRef = std::shared_ptr<const Seal>;  // null: the connection isn't protected

// Of a seal in a message: the number, then the tags.
constexpr size_t seal_wire_bytes(uint64_t length_bytes, uint32_t pieces_max) {
  return sizeof(uint64_t) + seal_piece_count(length_bytes, pieces_max) * provider::kTagBytes;
}

}  // namespace rrpc::endpoint
