#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace rrpc {

void check_failed(const char* condition, const char* message, const char* file, int line) {
  std::fprintf(stderr, "rrpc: check failed at %s:%d: %s (%s)\n", file, line, condition, message);
  std::abort();
}

}  // namespace rrpc
