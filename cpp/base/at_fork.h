// What a forked child does before anything else runs in it.
#pragma once

#include <pthread.h>

namespace rrpc {

// Has the handlers called at each fork: before it, in the parent after it, and in the child; null: nothing to do there.
// For constants of a namespace alone, which are made when the library is loaded. A variable within a function, made by
// the thread that comes first, would stay half made in a child that another thread forks meanwhile, and each thread of
// the child that comes there would wait for good.
class AtFork {
 public:
  explicit AtFork(void (*in_child)()) : AtFork(nullptr, nullptr, in_child) {}
  AtFork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
    (void)pthread_atfork(before, in_parent, in_child);
  }
};

}  // namespace rrpc
