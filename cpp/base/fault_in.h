// Pages of fresh memory, brought in before somebody writes there. Touching new memory costs several times the copy into
// it, and a second processor can do it meanwhile. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

namespace rrpc {

// Of private memory, both multiples of a page. Returns when the pages are there. No more than a wish: kernels
// before 5.14 leave them to the first touch.
void fault_in(std::byte* data, size_t length_bytes);

// Brings in the first few MiB at once, the rest by a helper thread from the end on, while the caller writes from the
// beginning. `hold` keeps the memory until that is done.
void fault_in_behind(std::byte* data, size_t length_bytes, std::shared_ptr<const void> hold);

}  // namespace rrpc
