// Looks over a MessagePack value before anything is built of it: a few bytes of a stranger can stand for much memory,
// deep recursion, or a dict whose keys all collide.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace rrpc {

// Of lists and maps; the map of a record belongs to the record's list. Two more than values may have (MAX_DEPTH of
// rrpc/codec/wire.py): a request keeps its arguments in a map of lists.
constexpr size_t kNestingMax = 130;

// Lists, maps and extensions of one value, marks aside: an empty one is a byte on the wire and 64 or more in memory.
constexpr uint64_t kObjectsAlways = 1 << 18;
constexpr uint64_t kBytesPerObject = 8;  // what each further one needs on the wire, on average
constexpr uint64_t objects_max(uint64_t length_bytes) { return kObjectsAlways + length_bytes / kBytesPerObject; }

// Extension codes of rrpc/codec/wire.py: first elements of lists that stand for tuples, sets and records.
constexpr int kFirstMark = 16;
constexpr int kRecordMark = 19;
constexpr int kTimestamp = -1;  // MessagePack's own; rrpc has its own date and time

// A dict or set of so few keys costs little even if they all collide.
constexpr size_t kKeysUnchecked = 32;

struct MsgpackFacts {
  uint64_t objects = 0;
  // A map of more than kKeysUnchecked entries has a key that is neither str nor bin, whose hashes are secret.
  bool keys_to_check = false;
};

// An error says what no decoder should build: nesting, too many objects, a count that the bytes can't hold, a
// timestamp. What else is malformed is left to the decoder, bytes behind the value too.
Result<MsgpackFacts> scan_msgpack(Bytes value);

}  // namespace rrpc
