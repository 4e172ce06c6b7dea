#include "provider/sim/requests.h"

#include <algorithm>

namespace rrpc::provider::sim {

bool claim(Fabric& fabric, Host* host, const Sge& sge, Piece& piece) {
  piece = {sge.address, sge.length_bytes, sge.region == nullptr ? 0 : sge.region->lkey()};
  RegionRecord* region = fabric.regions.find(piece.lkey);
  if (region == nullptr || region->host != host || !region->contains(piece.address, piece.length_bytes)) {
    piece.lkey = 0;
    fabric.violation(host, "posted memory outside its region");
    return false;
  }
  ++region->posted_count;
  return true;
}

void unclaim(Fabric& fabric, const Piece& piece) {
  if (RegionRecord* region = fabric.regions.find(piece.lkey)) --region->posted_count;
}

uint64_t checksum_of(Bytes bytes, uint64_t seed) {
  uint64_t hash = seed ^ 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t word) { hash = (hash ^ word) * 0x9e3779b97f4a7c15, hash ^= hash >> 29; };
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    mix(word);
  }
  for (std::byte byte : bytes) mix(static_cast<uint64_t>(byte) + 1);
  return hash;
}

MutableBytes memory_of(Fabric& fabric, const Piece& piece) {
  const RegionRecord* region = fabric.regions.find(piece.lkey);
  if (region == nullptr || !region->contains(piece.address, piece.length_bytes)) return {};
  return {piece.address, piece.length_bytes};
}

uint64_t source_checksum(Fabric& fabric, const SendRequest& request) {
  uint64_t hash = 0;
  for (const Piece& piece : request.pieces) hash = checksum_of(memory_of(fabric, piece), hash);
  return hash;
}

std::vector<std::byte> gather(Fabric& fabric, const SendRequest& request) {
  if (request.taken) return request.copy;
  std::vector<std::byte> bytes;
  bytes.reserve(request.length_bytes);
  for (const Piece& piece : request.pieces) {
    const MutableBytes memory = memory_of(fabric, piece);
    bytes.insert(bytes.end(), memory.begin(), memory.end());
  }
  bytes.resize(request.length_bytes, kScribble);
  return bytes;
}

bool scatter(Fabric& fabric, const SendRequest& request, size_t offset_bytes, Bytes bytes) {
  for (const Piece& piece : request.pieces) {
    if (bytes.empty()) return true;
    if (offset_bytes >= piece.length_bytes) {
      offset_bytes -= piece.length_bytes;
      continue;
    }
    const MutableBytes memory = memory_of(fabric, piece);
    if (memory.empty()) return false;
    const size_t count = std::min(bytes.size(), memory.size() - offset_bytes);
    std::memcpy(memory.data() + offset_bytes, bytes.data(), count);
    bytes = bytes.subspan(count);
    offset_bytes = 0;
  }
  return bytes.empty();
}

void scribble(MutableBytes memory) { std::fill(memory.begin(), memory.end(), kScribble); }

}  // namespace rrpc::provider::sim
