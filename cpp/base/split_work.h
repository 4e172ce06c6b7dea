// Work in pieces, of which a second thread of the process does some where a core is free for it.
#pragma once

#include <cstddef>

namespace rrpc {

using Piece = void (*)(void* context, size_t index);

// Calls piece(context, 0) to piece(context, count - 1), each once and in any order, and returns when all have returned.
// At most one caller of the process has the helper at a time, others do all themselves. It takes some 50 us to wake,
// stays awake for 100 us after its last piece, and is never waited for longer than one piece. A forked child has its
// own.
void split_work(size_t count, Piece piece, void* context);

}  // namespace rrpc
