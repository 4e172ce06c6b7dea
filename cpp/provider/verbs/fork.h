// After fork() a child may not touch what its parent has of an adapter: the queues are mapped for the parent alone.
#pragma once

#include <cstdint>

namespace rrpc::provider::verbs {

// Goes up in the child at each fork: what was made under another number is the parent's.
uint32_t fork_generation();

// Before any registration: memory that an adapter has pinned must not be copied on write under it.
void prepare_for_fork();

}  // namespace rrpc::provider::verbs
