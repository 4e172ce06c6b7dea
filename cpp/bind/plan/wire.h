// The facts of rrpc/codec/wire.py that nodes need; tests/interface/test_compiled.py holds the two to the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/msgpack_scan.h"
#include "bind/plan/node.h"

namespace rrpc::bind::plan {

constexpr size_t kBulkBytes = 16384;  // buffers from here on leave the message
constexpr char kMarked = '\xc1';      // first byte of a payload with marked lists
constexpr uint8_t kNil = 0xc0;

// Extension codes.
constexpr int8_t kArrayExt = 1, kBulkArrayExt = 2, kComplexExt = 33;
constexpr int8_t kTupleMark = kFirstMark, kSetMark = kFirstMark + 1, kFrozenSetMark = kFirstMark + 2;
constexpr int8_t mark_of(Kind kind) {
  return kind == Kind::kSet ? kSetMark : kind == Kind::kFrozenSet ? kFrozenSetMark : kTupleMark;
}

constexpr size_t kScanFromBytes = 128;                   // a shorter payload can't nest too deep
constexpr double kFloat32Overflows = 0x1p128 - 0x1p103;  // nearer to 2^128 than to the largest f32

}  // namespace rrpc::bind::plan
