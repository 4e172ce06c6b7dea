// Functions that libibverbs got later than the oldest one that this plugin is to be loaded with: linked in the usual
// way, the plugin couldn't be loaded there at all.
#pragma once

namespace rrpc::provider::verbs {

// Null where the library has no such function.
void* find_in_library(const char* name);

}  // namespace rrpc::provider::verbs
