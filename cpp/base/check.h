// RRPC_CHECK: a programmer's error ends the process, in release builds too. Never for a peer's bytes.
#pragma once

namespace rrpc {
[[noreturn]] void check_failed(const char* condition, const char* message, const char* file, int line);
}

#define RRPC_CHECK(condition, message)                                 \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::rrpc::check_failed(#condition, (message), __FILE__, __LINE__); \
  } while (false)
