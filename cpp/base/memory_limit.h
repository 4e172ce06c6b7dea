// How much memory this process may have.
#pragma once

#include <cstddef>
#include <string>

namespace rrpc {

// The machine's memory, or less where a control group of the process, version 2 or 1, has a lower limit. `root` is the
// directory that stands for "/" when the control groups are looked up.
size_t memory_limit_bytes(const std::string& root = "");

}  // namespace rrpc
