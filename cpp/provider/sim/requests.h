// Posted work, from the post until its completion was polled: so long it belongs to the device.
#pragma once

#include <memory>
#include <vector>

#include "provider/sim/fabric.h"

namespace rrpc::provider::sim {

struct Piece {
  std::byte* address;
  uint32_t length_bytes;
  uint32_t lkey;
};

struct SendRequest {
  uint64_t sequence = 0;
  uint64_t wr_id = 0;
  Opcode opcode = Opcode::kSend;
  bool signalled = true;
  bool launched = false;
  bool finished = false;
  bool local_fault = false;  // a piece outside its region
  bool reserved = false;     // a message of reserve_message(): without signalled it completes in no case
  bool taken = false;        // the bytes are in `copy`: inline, or the connection ended with them on their way
  WcStatus status = WcStatus::kSuccess;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;
  uint32_t length_bytes = 0;
  uint32_t pieces_landed_count = 0;
  uint64_t checksum = 0;
  std::vector<Piece> pieces;
  std::vector<std::byte> copy;
};

struct ReceiveSlot {
  uint64_t wr_id = 0;
  Sge sge;  // as it was posted
  Piece piece{};
  bool local_fault = false;
  bool completed = false;  // poll() can see it
  uint64_t checksum = 0;
};

// What a completion tells, and the request behind it.
struct CompletionEntry {
  Completion completion;
  std::shared_ptr<SendRequest> send;
  std::shared_ptr<ReceiveSlot> receive;
};

constexpr std::byte kScribble{0xDB};

// Takes note that a request works on the memory, which must lie inside its region: else false, and a violation.
bool claim(Fabric& fabric, Host* host, const Sge& sge, Piece& piece);
void unclaim(Fabric& fabric, const Piece& piece);
uint64_t checksum_of(Bytes bytes, uint64_t seed = 0);
// The piece's memory, or nothing when its region is gone: then it must not be touched.
MutableBytes memory_of(Fabric& fabric, const Piece& piece);
uint64_t source_checksum(Fabric& fabric, const SendRequest& request);
std::vector<std::byte> gather(Fabric& fabric, const SendRequest& request);
// False when a destination is gone.
bool scatter(Fabric& fabric, const SendRequest& request, size_t offset_bytes, Bytes bytes);
void scribble(MutableBytes memory);

}  // namespace rrpc::provider::sim
